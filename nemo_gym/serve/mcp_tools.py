"""MCP tools of a resources server, collected from its routes. Does not need the `mcp` package.

A tool is a `POST /<name>` route whose body is a JSON object. Tools are built from the OpenAPI description of a route,
so that routes with routers, dependencies and any kind of signature are supported.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.errors import PydanticInvalidForJsonSchema

from nemo_gym.errors import ConfigError
from nemo_gym.keys import RESERVED_MCP_TOOL_NAMES

TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Tool names that every MCP client and model API accepts."""

_CATCH_ALL = re.compile(r"/\{[^{}/]+\}")
_REFERENCE = "#/components/schemas/"


class MCPExposureError(ConfigError, ValueError):
    """The tools of a server cannot be offered over MCP."""


@dataclass(frozen=True)
class MCPTool:
    """Name, description, input schema and route of a tool."""

    name: str
    description: str
    input_schema: dict[str, Any]
    """JSON schema of the arguments, which are sent as the request body."""
    path: str = ""
    """Path of the route; empty for `/<name>`."""

    @property
    def route_path(self) -> str:
        return self.path or f"/{self.name}"


def harvest_tools(app: FastAPI) -> tuple[list[MCPTool], MCPTool | None]:
    """Return the tools of the POST routes of `app`, and its catch-all route `POST /{name}` (None without one).

    The routes that all resources servers have in common (RESERVED_MCP_TOOL_NAMES) and routes outside the API schema
    are not tools. The tool names of a catch-all route are unknown here; the server lists them in `mcp_tools`.

    Raises:
        MCPExposureError: (a ValueError) a route cannot be a tool, or there are several catch-all routes.
    """
    tools: list[MCPTool] = []
    catch_alls: list[MCPTool] = []
    for path, operation, schemas in _post_operations(app):
        if path.removeprefix("/") in RESERVED_MCP_TOOL_NAMES:  # a route of an included router
            continue
        tool = bind_route(path, operation, schemas)
        (catch_alls if _CATCH_ALL.fullmatch(path) else tools).append(tool)
    if len(catch_alls) > 1:
        paths = ", ".join(tool.path for tool in catch_alls)
        raise MCPExposureError(f"several catch-all routes: {paths}", fix="keep one")
    return tools, catch_alls[0] if catch_alls else None


def bind_route(path: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> MCPTool:
    """Return the tool for an OpenAPI POST operation; `schemas` are the component schemas that it references.

    Raises:
        MCPExposureError: (a ValueError) the route has required parameters, or its body is not a JSON object.
    """
    location = f"POST {path}"
    is_catch_all = _CATCH_ALL.fullmatch(path) is not None
    required = [
        f"{parameter['in']} parameter '{parameter['name']}'"
        for parameter in operation.get("parameters", ())
        if parameter.get("required") and not (is_catch_all and parameter["in"] == "path")
    ]
    if required:
        raise MCPExposureError(
            f"a tool takes only a JSON object, but this route needs the {required[0]}",
            where=location,
            fix="move it into the body, or hide the route with include_in_schema=False",
        )
    return MCPTool(
        name=path.strip("/"),
        description=operation.get("description") or operation.get("summary") or "",
        input_schema=_body_schema(operation.get("requestBody") or {}, schemas, location),
        path=path,
    )


def index_tools(tools: Iterable[MCPTool], server_name: str) -> dict[str, MCPTool]:
    """Return the tools by name. `server_name` is used in errors.

    Raises:
        MCPExposureError: (a ValueError) there are no tools, or a name is reserved, duplicate or invalid.
    """
    by_name: dict[str, MCPTool] = {}
    for tool in tools:
        problem = _name_problem(tool.name, by_name)
        if problem:
            raise MCPExposureError(f"the tool '{tool.name}' {problem}", where=server_name)
        by_name[tool.name] = tool
    if not by_name:
        raise MCPExposureError(
            "expose_tools_over_mcp is set, but there is no tool to expose",
            where=server_name,
            fix="add a `POST /<tool>` route, or override `mcp_tools` to name the tools of a catch-all route",
        )
    return by_name


def _name_problem(name: str, others: Mapping[str, MCPTool]) -> str | None:
    """Return the problem of a tool name as part of a sentence; None if the name is valid."""
    if name in RESERVED_MCP_TOOL_NAMES:
        return "has the name of a route that every resources server has"
    if name in others:
        return "is defined twice"
    if not TOOL_NAME.fullmatch(name):
        return "has an invalid name: use up to 64 letters, digits, '_' and '-'"
    return None


def _post_operations(app: FastAPI) -> Iterable[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Yield path, OpenAPI operation and component schemas of POST routes that may be tools, including duplicates."""
    for route in app.routes:
        if isinstance(route, APIRoute) and not _may_be_a_tool(route):
            continue
        try:
            document = get_openapi(title="tools", version="1", routes=[route])
        except PydanticInvalidForJsonSchema as error:
            raise MCPExposureError(
                f"the route has no JSON schema: {error}", where=f"POST {getattr(route, 'path', route)}"
            ) from None
        schemas = document.get("components", {}).get("schemas", {})
        for path, operations in document.get("paths", {}).items():
            if "post" in operations:
                yield path, operations["post"], schemas


def _may_be_a_tool(route: APIRoute) -> bool:
    return "POST" in (route.methods or ()) and route.path.removeprefix("/") not in RESERVED_MCP_TOOL_NAMES


def _body_schema(body: Mapping[str, Any], schemas: Mapping[str, Any], location: str) -> dict[str, Any]:
    """Return a self-contained JSON schema of a request body; without a body, the schema of an empty object."""
    if not body:
        return {"type": "object", "properties": {}}
    content = body.get("content", {})
    declared = content.get("application/json", {}).get("schema")
    if declared is None:
        raise MCPExposureError(f"a tool takes JSON, but this route takes {', '.join(content)}", where=location)
    definitions: dict[str, Any] = {}
    schema = _with_local_references(_without_null(declared), schemas, definitions)
    if "$ref" in schema:
        schema = definitions[_name_in(schema["$ref"])]
    if schema.get("type") != "object":
        raise MCPExposureError(
            f"a tool takes a JSON object, but the body of this route is {schema.get('type', 'something else')}",
            where=location,
            fix="declare the body as a pydantic model, or hide the route with include_in_schema=False",
        )
    definitions = {**schema.get("$defs", {}), **definitions}  # a tool method has its own definitions
    return {**schema, "$defs": definitions} if _has_references(schema) else dict(schema)


def _without_null(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of an optional body without its null alternative."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
    return choices[0] if len(choices) == 1 else schema


def _with_local_references(part: Any, schemas: Mapping[str, Any], definitions: dict[str, Any]) -> Any:
    """Return a copy of a schema whose references point into `$defs`; add the referenced schemas to `definitions`."""
    if isinstance(part, list):
        return [_with_local_references(item, schemas, definitions) for item in part]
    if not isinstance(part, Mapping):
        return part
    reference = part.get("$ref")
    if not isinstance(reference, str) or not reference.startswith(_REFERENCE):
        return {key: _with_local_references(value, schemas, definitions) for key, value in part.items()}
    name = _name_in(reference)
    if name not in definitions:
        definitions[name] = {}  # before the recursion, because a schema may reference itself
        definitions[name] = _with_local_references(schemas[name], schemas, definitions)
    return {**part, "$ref": f"#/$defs/{name}"}


def _name_in(reference: str) -> str:
    return reference.rpartition("/")[2]


def _has_references(part: Any) -> bool:
    if isinstance(part, list):
        return any(map(_has_references, part))
    return isinstance(part, Mapping) and ("$ref" in part or any(map(_has_references, part.values())))
