"""Generate the reference page of endpoints: routes of each kind of server and the fields of every body."""

import importlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

from pydantic import BaseModel

SERVERS = (
    ("Resources servers", "resources_servers.example_single_tool_call.app", "example_single_tool_call"),
    ("Agents", "responses_api_agents.simple_agent.app", "simple_agent"),
    ("Models", "responses_api_models.scripted_model.app", "scripted_model"),
)
REQUEST_BODIES = {
    "/v1/responses": "NeMoGymResponseCreateParamsNonStreaming",
    "/v1/chat/completions": "NeMoGymChatCompletionCreateParamsNonStreaming",
    "/v1/messages": "NeMoGymAnthropicMessageCreateParamsNonStreaming",
}
"""Bodies that model servers parse themselves, so that they accept whatever a provider accepts."""
RESPONSE_BODIES = {
    "/v1/messages": "NeMoGymAnthropicMessage",
    "/server_instances": "a list of `ServerInstanceDisplayConfig`",
    "/rollouts_waiting_for": "the call that each of the `[task, rollout]` pairs in the body waits for: `WaitingFor`",
    "/global_config_dict_yaml": "the configuration as YAML; secrets are masked except for processes of the run",
    "/reverify_mode": "whether `/verify` needs the session: see `ReverifyMode`",
}
FURTHER_BODIES = (
    ("nemo_gym.openai_utils", "NeMoGymResponseCreateParamsNonStreaming"),
    ("nemo_gym.openai_utils", "NeMoGymResponse"),
    ("nemo_gym.openai_utils", "NeMoGymChatCompletionCreateParamsNonStreaming"),
    ("nemo_gym.openai_utils", "NeMoGymChatCompletion"),
    ("nemo_gym.anthropic_utils", "NeMoGymAnthropicMessageCreateParamsNonStreaming"),
    ("nemo_gym.anthropic_utils", "NeMoGymAnthropicMessage"),
    ("nemo_gym.server_utils", "ServerInstanceDisplayConfig"),
)
MAX_ALTERNATIVES = 4
INTRODUCTION = """\
`GET /openapi.json` of a running server has the complete schemas. Every server also answers `GET /`, a health check.
Cookies, paths and headers carry the rest:

| where | name | meaning |
|---|---|---|
| cookie | named after the server, set by its first reply | the session; send it back ([sessions](../calls.md#sessions))
|
| path | `/ng-rollout/<id>/…` before any path | the rollout of a call, for captures and logs |
| header | `{deadline}` | seconds until the caller gives up ([deadlines](../calls.md#deadlines)) |
| header | `{rollout}` | the rollout of the call, only between servers of a run; optional ([cells](../cells.md)) |
| header of an error | `{failed}`, `{failed_path}` | the server that failed, and its path |
| header of an error | `{error}`, `{upstream}` | the kind of error, and the status of the endpoint behind the server |

A body of the wrong shape is refused with 422 and the location of every problem. Any other error is one JSON string that
describes it, with status 500, or 504 after a timeout; it never carries a reward.
"""


def endpoints_page(note: str) -> str:
    """Return the page as Markdown."""
    from nemo_gym.keys import DEADLINE_HEADER, ROLLOUT_HEADER
    from nemo_gym.transport.response_errors import (
        ERROR_HEADER,
        FAILED_HEADER,
        FAILED_PATH_HEADER,
        UPSTREAM_STATUS_HEADER,
    )

    introduction = INTRODUCTION.format(
        deadline=DEADLINE_HEADER,
        rollout=ROLLOUT_HEADER,
        failed=FAILED_HEADER,
        failed_path=FAILED_PATH_HEADER,
        error=ERROR_HEADER,
        upstream=UPSTREAM_STATUS_HEADER,
    )
    lines = ["# Endpoints", "", note, introduction]
    bodies: dict[str, dict[str, Any]] = {}
    for title, module, name in SERVERS:
        schema = _application(importlib.import_module(module)).openapi()
        lines += [f"## {title}", "", f"Shown with `{name}`.", "", *_routes(schema, bodies), ""]
    lines += ["## The head", "", "One per run. It serves the configuration and the address of every server.", ""]
    lines += [*_routes(_head().openapi(), bodies), ""]
    for module, name in FURTHER_BODIES:
        model: type[BaseModel] = getattr(importlib.import_module(module), name)
        bodies[name] = model.model_json_schema()
    lines += ["## Bodies", ""]
    for name in sorted(bodies):
        lines += [f"### {name}", "", *_body(bodies[name]), ""]
    return "\n".join(lines)


def _routes(schema: dict[str, Any], bodies: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield a table of routes; add the schemas they name to `bodies`."""
    yield from ("| method | path | takes | gives |", "|---|---|---|---|")
    schemas = schema.get("components", {}).get("schemas", {})
    for path, methods in sorted(schema["paths"].items()):
        for method, facts in methods.items():
            takes = _schema_name(facts.get("requestBody", {})) or REQUEST_BODIES.get(path, "")
            gives = _schema_name(facts.get("responses", {}).get("200", {})) or RESPONSE_BODIES.get(path, "")
            for name in (takes, gives):
                if name in schemas:
                    bodies.setdefault(name, schemas[name])
            yield f"| {method.upper()} | `{path}` | {_link(takes)} | {_link(gives)} |"


def _link(name: str) -> str:
    return f"[`{name}`](#{name.lower()})" if name and " " not in name else name


def _schema_name(facts: dict[str, Any]) -> str:
    schema = facts.get("content", {}).get("application/json", {}).get("schema", {})
    reference = schema.get("$ref") or next((s["$ref"] for s in schema.get("anyOf", ()) if "$ref" in s), "")
    return str(reference).rsplit("/", 1)[-1]


def _body(schema: dict[str, Any]) -> Iterator[str]:
    text = str(schema.get("description") or "").strip().split("\n\n")[0]
    if text:
        yield from (" ".join(text.split()), "")
    if schema.get("additionalProperties") is True:
        yield from ("Further fields are accepted and kept.", "")
    if not schema.get("properties"):
        yield "This body has no fields."
        return
    yield from ("| field | type | | meaning |", "|---|---|---|---|")
    required = schema.get("required", ())
    for name, facts in schema.get("properties", {}).items():
        meaning = " ".join(str(facts.get("description") or "").split()).replace("|", "\\|")
        yield f"| `{name}` | {_shape(facts)} | {'required' if name in required else ''} | {meaning} |"


def _shape(schema: dict[str, Any]) -> str:
    """Describe a JSON schema in a few words."""
    if "$ref" in schema:
        return f"`{str(schema['$ref']).rsplit('/', 1)[-1]}`"
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    several = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if several:
        shapes = list(dict.fromkeys(_shape(one) for one in several))
        if len(shapes) > MAX_ALTERNATIVES:
            return f"one of {len(shapes)} [item types](../wire.md)"
        return " or ".join(shapes)
    if schema.get("type") == "array":
        return f"list of {_shape(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))


def _application(module: Any) -> Any:
    """Create the web application of the server class that a module defines."""
    from nemo_gym.server_utils import ServerClient, SimpleServer

    server = next(
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, SimpleServer) and value.__module__ == module.__name__
    )
    reference = {"type": "responses_api_models", "name": "m"}
    settings = {
        "host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "shown", "domain": "other",
        "script": [{"text": "x"}], "model_server": reference,
        "resources_server": {"type": "resources_servers", "name": "r"},
    }  # fmt: skip
    config: Any = server.model_fields["config"].annotation
    fields = {key: value for key, value in settings.items() if key in config.model_fields}
    return server(config=config(**fields), server_client=MagicMock(spec=ServerClient)).setup_webserver()


def _head() -> Any:
    from nemo_gym.config_types import BaseServerConfig
    from nemo_gym.server_utils import HeadServer

    return HeadServer(config=BaseServerConfig(host="127.0.0.1", port=1)).setup_webserver()
