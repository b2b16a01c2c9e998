"""Tool definitions from Python signatures: JSON schema of the arguments, and texts from the docstring.

The schema describes exactly what the function accepts: `ToolSignature.bind` validates arguments with the same pydantic
model that the schema is generated from.
"""

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic.fields import FieldInfo

from nemo_gym.errors import ConfigError

SESSION_ID_MARKER = object()
SessionId = Annotated[str, SESSION_ID_MARKER]
"""Annotation of a tool parameter that receives the session id and is not shown to the model."""

_SECTION = re.compile(r"(Args|Arguments|Parameters|Returns?|Raises|Yields?|Examples?|Notes?|Warnings?|See Also):\s*")
_ARGUMENT_SECTIONS = ("Args", "Arguments", "Parameters")
_ARGUMENT = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_MAPS_OF_SCHEMAS = ("properties", "$defs", "patternProperties", "dependentSchemas")
_VALUES = ("default", "enum", "const", "examples")
"""Keywords whose values are data, not schemas."""


class InvalidArguments(ValueError):
    """The arguments of a tool call do not match its schema. The message is written for the model."""


class InvalidTool(ConfigError, TypeError):
    """A method cannot be a tool."""


@dataclass(frozen=True)
class ToolSignature:
    """The arguments of a tool: their schema, and the parameters of its function that the server fills in."""

    description: str
    parameters: dict[str, Any]
    """JSON schema of the arguments: an object without additional properties."""
    arguments: type[BaseModel]
    names: Mapping[str, str]
    """Name of each parameter, by the field of `arguments`."""
    request_names: tuple[str, ...]
    """Parameters that receive the request."""
    session_names: tuple[str, ...]
    """Parameters that receive the session id."""

    def bind(self, arguments: Any) -> dict[str, Any]:
        """Validate the arguments of a call and return them by parameter name, with defaults.

        Raises:
            InvalidArguments: the arguments do not match the schema.
        """
        try:
            model = self.arguments.model_validate(arguments)
        except ValidationError as error:
            raise InvalidArguments("; ".join(map(self._describe, error.errors(include_url=False)))) from None
        return {name: getattr(model, field) for field, name in self.names.items()}

    def _describe(self, problem: Mapping[str, Any]) -> str:
        """Return one problem of the arguments as text for the model."""
        location = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
            return f"unknown argument {location!r} (the arguments are: {', '.join(self.names.values()) or 'none'})"
        if problem["type"] == "missing":
            return f"the argument {location!r} is missing"
        return f"{location}: {problem['msg']}" if location else str(problem["msg"])


def read_signature(function: Callable[..., Any], where: str, description: str | None = None) -> ToolSignature:
    """Return the signature of a method as a tool; `where` names it in errors, `description` replaces the docstring's.

    Raises:
        InvalidTool: a parameter has no annotation or one without a JSON schema, or cannot be passed by name.
    """
    summary, argument_texts = parse_docstring(inspect.getdoc(function) or "")
    try:
        types = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise InvalidTool(f"an annotation cannot be resolved: {error}", where=where) from None
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    requests: list[str] = []
    sessions: list[str] = []
    for parameter in list(inspect.signature(function).parameters.values())[1:]:  # without `self`
        annotation = types.get(parameter.name)
        if annotation is Request:
            requests.append(parameter.name)
        elif SESSION_ID_MARKER in typing.get_args(annotation)[1:]:
            sessions.append(parameter.name)
        else:
            field = f"argument_{len(fields)}"
            fields[field] = _field_of(parameter, annotation, argument_texts.get(parameter.name), where)
            names[field] = parameter.name
    try:
        # The fields have neutral names, because a parameter may have a name that pydantic reserves ("schema", "copy").
        model = create_model("Arguments", __config__=ConfigDict(extra="forbid", defer_build=False), **fields)
        schema = model.model_json_schema(by_alias=True)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise InvalidTool(
            f"a parameter has no JSON schema: {str(error).splitlines()[0]}",
            where=where,
            fix="annotate it with a JSON type",
        ) from None
    return ToolSignature(
        description=summary if description is None else description,
        parameters=_tidy_schema(schema),
        arguments=model,
        names=names,
        request_names=tuple(requests),
        session_names=tuple(sessions),
    )


def _field_of(parameter: inspect.Parameter, annotation: Any, text: str | None, where: str) -> tuple[Any, FieldInfo]:
    """Return annotation and field of one parameter for `create_model`."""
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise InvalidTool(
            f"the parameter '{parameter.name}' cannot be passed by name", where=where, fix="declare each argument"
        )
    if annotation is None:
        raise InvalidTool(f"the parameter '{parameter.name}' has no type annotation", where=where)
    default = parameter.default
    if isinstance(default, FieldInfo):  # `amount: int = Field(1, ge=1)`
        annotation, default = Annotated[annotation, default], default.default
    details: dict[str, Any] = {"alias": parameter.name}
    if default is not parameter.empty and not _is_required(default):
        details["default"] = default
    if text and not _has_description(annotation):
        details["description"] = text
    return annotation, Field(**details)


def _is_required(default: Any) -> bool:
    return default is Ellipsis or type(default).__name__ == "PydanticUndefinedType"


def _has_description(annotation: Any) -> bool:
    details = typing.get_args(annotation)[1:] if typing.get_origin(annotation) is Annotated else ()
    return any(isinstance(detail, FieldInfo) and detail.description for detail in details)


def parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into the description and the texts of the arguments in its section `Args`.

    Other sections (`Returns`, `Raises`, …) belong to neither.
    """
    description: list[str] = []
    arguments: dict[str, str] = {}
    section, indent, name = "", 0, ""
    for line in text.splitlines():
        header = _SECTION.fullmatch(line)
        depth = len(line) - len(line.lstrip())
        if header:
            section, indent, name = header[1], 0, ""
        elif not section:
            description.append(line)
        elif section in _ARGUMENT_SECTIONS and line.strip():
            indent = indent or depth
            argument = _ARGUMENT.fullmatch(line.strip()) if depth == indent else None
            if argument:
                name = argument[1]
                arguments[name] = argument[2]
            elif name:
                arguments[name] = f"{arguments[name]} {line.strip()}".strip()
    return "\n".join(description).strip(), arguments


def _tidy_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without generated titles and, unless it is recursive, without references."""
    definitions = schema.get("$defs", {})
    recursive = {name for name in definitions if _can_reach(name, name, definitions)}
    tidy: dict[str, Any] = _tidy_part(
        {key: value for key, value in schema.items() if key != "$defs"}, definitions, recursive
    )
    kept = {name: _tidy_part(definitions[name], definitions, recursive) for name in sorted(recursive)}
    tidy.pop("description", None)
    tidy.setdefault("properties", {})
    return {**tidy, "$defs": kept} if kept else tidy


def _tidy_part(part: Any, definitions: Mapping[str, Any], recursive: set[str]) -> Any:
    """Return a schema without titles and with the definitions that it references, except recursive ones."""
    if isinstance(part, list):
        return [_tidy_part(item, definitions, recursive) for item in part]
    if not isinstance(part, dict):
        return part
    name = _definition_name(part)
    if name is not None and name not in recursive:
        part = {**definitions[name], **{key: value for key, value in part.items() if key != "$ref"}}
    tidy: dict[str, Any] = {}
    for key, value in part.items():
        if key in _VALUES:
            tidy[key] = value
        elif key in _MAPS_OF_SCHEMAS:
            tidy[key] = {inner: _tidy_part(schema, definitions, recursive) for inner, schema in value.items()}
        elif key not in ("title", "discriminator"):
            tidy[key] = _tidy_part(value, definitions, recursive)
    return tidy


def _definition_name(part: Mapping[str, Any]) -> str | None:
    reference = part.get("$ref")
    return reference.removeprefix("#/$defs/") if isinstance(reference, str) else None


def _can_reach(start: str, target: str, definitions: Mapping[str, Any]) -> bool:
    """Return True if the definition `start` refers to `target`, directly or through others."""
    seen: set[str] = set()
    pending = _references(definitions[start])
    while pending:
        name = pending.pop()
        if name == target:
            return True
        if name not in seen:
            seen.add(name)
            pending |= _references(definitions[name])
    return False


def _references(part: Any) -> set[str]:
    """Return the names of the definitions that a schema refers to."""
    if isinstance(part, list):
        return set().union(*map(_references, part))
    if not isinstance(part, dict):
        return set()
    name = _definition_name(part)
    inner = set().union(*(_references(value) for key, value in part.items() if key not in _VALUES))
    return inner | ({name} if name is not None else set())
