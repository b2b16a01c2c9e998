"""The page of endpoints: what each kind of server answers, and the fields of every body, read from the code."""

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
TAKEN = {
    "/v1/responses": "NeMoGymResponseCreateParamsNonStreaming",
    "/v1/chat/completions": "NeMoGymChatCompletionCreateParamsNonStreaming",
    "/v1/messages": "NeMoGymAnthropicMessageCreateParamsNonStreaming",
}
"""Model servers read their bodies themselves, so that nothing is refused that a provider would take."""
GIVEN = {
    "/v1/messages": "NeMoGymAnthropicMessage",
    "/server_instances": "a list of `ServerInstanceDisplayConfig`",
    "/rollouts_waiting_for": "of those whose `[task, rollout]` were sent, what each waits for: `WaitingFor`",
    "/global_config_dict_yaml": "the configuration as YAML, secrets hidden from others than the run's own processes",
    "/reverify_mode": "whether `/verify` needs the session: see `ReverifyMode`",
}
ELSEWHERE = (
    ("nemo_gym.openai_utils", "NeMoGymResponseCreateParamsNonStreaming"),
    ("nemo_gym.openai_utils", "NeMoGymResponse"),
    ("nemo_gym.openai_utils", "NeMoGymChatCompletionCreateParamsNonStreaming"),
    ("nemo_gym.openai_utils", "NeMoGymChatCompletion"),
    ("nemo_gym.anthropic_utils", "NeMoGymAnthropicMessageCreateParamsNonStreaming"),
    ("nemo_gym.anthropic_utils", "NeMoGymAnthropicMessage"),
    ("nemo_gym.server_utils", "ServerInstanceDisplayConfig"),
)
MOST_ALTERNATIVES = 4
INTRODUCTION = """\
`GET /openapi.json` of a running server has the complete schemas. Every server also answers `GET /` (is it there?).
What goes along with a body:

| where | name | meaning |
|---|---|---|
| cookie | the server’s own, set by its first answer | which session; send it back ([sessions](../calls.md#sessions)) |
| path | `/ng-rollout/<id>/…` before any path | which rollout a call belongs to, for captures and logs |
| header | `{deadline}` | how long the caller still waits ([deadlines](../calls.md#deadlines)) |
| header of an error | `{failed}`, `{failed_path}` | which server failed, and at what |
| header of an error | `{error}`, `{upstream}` | what it was, and the status the endpoint behind it gave |

A body that does not fit is refused with 422 and the place of every problem. Any other error is one JSON string that
says what happened, with status 500, or 504 when time was up; it never carries a reward.
"""


def endpoints(note: str) -> str:
    """The whole page."""
    from nemo_gym.keys import DEADLINE_HEADER
    from nemo_gym.net.status import ERROR_HEADER, FAILED_HEADER, FAILED_PATH_HEADER, UPSTREAM_STATUS_HEADER

    told = INTRODUCTION.format(
        deadline=DEADLINE_HEADER,
        failed=FAILED_HEADER,
        failed_path=FAILED_PATH_HEADER,
        error=ERROR_HEADER,
        upstream=UPSTREAM_STATUS_HEADER,
    )
    lines = ["# Endpoints", "", note, told]
    bodies: dict[str, dict[str, Any]] = {}
    for title, module, name in SERVERS:
        schema = _application(importlib.import_module(module)).openapi()
        lines += [f"## {title}", "", f"Shown with `{name}`.", "", *_routes(schema, bodies), ""]
    lines += ["## The head", "", "One per run: who is there, and what the configuration says.", ""]
    lines += [*_routes(_head().openapi(), bodies), ""]
    for module, name in ELSEWHERE:
        found: type[BaseModel] = getattr(importlib.import_module(module), name)
        bodies[name] = found.model_json_schema()
    lines += ["## Bodies", ""]
    for name in sorted(bodies):
        lines += [f"### {name}", "", *_body(bodies[name]), ""]
    return "\n".join(lines)


def _routes(schema: dict[str, Any], bodies: dict[str, dict[str, Any]]) -> Iterator[str]:
    """A table of routes; the schemas they name are added to `bodies`."""
    yield from ("| method | path | takes | gives |", "|---|---|---|---|")
    known = schema.get("components", {}).get("schemas", {})
    for path, methods in sorted(schema["paths"].items()):
        for method, facts in methods.items():
            takes = _schema_name(facts.get("requestBody", {})) or TAKEN.get(path, "")
            gives = _schema_name(facts.get("responses", {}).get("200", {})) or GIVEN.get(path, "")
            for name in (takes, gives):
                if name in known:
                    bodies.setdefault(name, known[name])
            yield f"| {method.upper()} | `{path}` | {_linked(takes)} | {_linked(gives)} |"


def _linked(name: str) -> str:
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
        yield from ("Further fields are kept and travel along.", "")
    if not schema.get("properties"):
        yield "No fields of its own."
        return
    yield from ("| field | type | | meaning |", "|---|---|---|---|")
    required = schema.get("required", ())
    for name, facts in schema.get("properties", {}).items():
        meaning = " ".join(str(facts.get("description") or "").split()).replace("|", "\\|")
        yield f"| `{name}` | {_shape(facts)} | {'required' if name in required else ''} | {meaning} |"


def _shape(schema: dict[str, Any]) -> str:
    """A JSON schema in few words."""
    if "$ref" in schema:
        return f"`{str(schema['$ref']).rsplit('/', 1)[-1]}`"
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    several = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if several:
        shapes = list(dict.fromkeys(_shape(one) for one in several))
        if len(shapes) > MOST_ALTERNATIVES:
            return f"one of {len(shapes)} [item types](../wire.md)"
        return " or ".join(shapes)
    if schema.get("type") == "array":
        return f"list of {_shape(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))


def _application(module: Any) -> Any:
    """The web application of the one server class that a folder's module defines."""
    from nemo_gym.server_utils import ServerClient, SimpleServer

    server = next(
        found
        for found in vars(module).values()
        if isinstance(found, type) and issubclass(found, SimpleServer) and found.__module__ == module.__name__
    )
    reference = {"type": "responses_api_models", "name": "m"}
    given = {
        "host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "shown", "domain": "other",
        "script": [{"text": "x"}], "model_server": reference,
        "resources_server": {"type": "resources_servers", "name": "r"},
    }  # fmt: skip
    config: Any = server.model_fields["config"].annotation
    wanted = {key: value for key, value in given.items() if key in config.model_fields}
    return server(config=config(**wanted), server_client=MagicMock(spec=ServerClient)).setup_webserver()


def _head() -> Any:
    from nemo_gym.config_types import BaseServerConfig
    from nemo_gym.server_utils import HeadServer

    return HeadServer(config=BaseServerConfig(host="127.0.0.1", port=1)).setup_webserver()
