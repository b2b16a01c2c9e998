"""Options of the Responses API: tools, tool choice, text format, reasoning and prompt.

In a request they are strict dictionaries, so that a misspelt key is an error. A response only copies them: there
they are objects that keep every field of the provider.
"""

from typing import Annotated, Literal, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from nemo_gym.wire.base import (
    OTHER,
    WIRE_CONFIG,
    AcceptObjects,
    Json,
    JsonObject,
    OpenDict,
    TaggedUnion,
    TypedObject,
    WireModel,
)

Callers = list[Literal["direct", "programmatic"]]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
SummaryDetail = Literal["auto", "concise", "detailed"]
Verbosity = Literal["low", "medium", "high"]


@with_config(ConfigDict(**{**WIRE_CONFIG, "extra": "forbid"}))
class StrictDict(TypedDict):
    """A typed dictionary in which an unknown key is an error."""


# `async` is a keyword and cannot be declared in a class body.
_FunctionToolParamFields = TypedDict("_FunctionToolParamFields", {"async": NotRequired[bool | None]})


class NeMoGymFunctionToolParam(StrictDict, _FunctionToolParamFields):
    name: str
    parameters: NotRequired[JsonObject | None]
    strict: NotRequired[bool | None]
    type: Literal["function"]
    description: NotRequired[str | None]
    allowed_callers: NotRequired[Callers | None]
    defer_loading: NotRequired[bool | None]
    output_schema: NotRequired[JsonObject | None]


class CustomToolParam(StrictDict, _FunctionToolParamFields):
    name: str
    type: Literal["custom"]
    description: NotRequired[str | None]
    format: NotRequired[Json]
    allowed_callers: NotRequired[Callers | None]
    defer_loading: NotRequired[bool | None]


class FileSearchToolParam(StrictDict):
    type: Literal["file_search"]
    vector_store_ids: list[str]
    filters: NotRequired[Json]
    max_num_results: NotRequired[int | None]
    ranking_options: NotRequired[Json]


class WebSearchToolParam(StrictDict):
    type: Literal["web_search", "web_search_2025_08_26"]
    external_web_access: NotRequired[bool | None]
    filters: NotRequired[Json]
    search_context_size: NotRequired[Literal["low", "medium", "high"] | None]
    user_location: NotRequired[Json]


class WebSearchPreviewToolParam(StrictDict):
    type: Literal["web_search_preview", "web_search_preview_2025_03_11"]
    search_content_types: NotRequired[list[Literal["text", "image"]] | None]
    search_context_size: NotRequired[Literal["low", "medium", "high"] | None]
    user_location: NotRequired[Json]


class ComputerUsePreviewToolParam(StrictDict):
    display_height: int
    display_width: int
    environment: Literal["windows", "mac", "linux", "ubuntu", "browser"]
    type: Literal["computer_use_preview"]


class McpToolParam(StrictDict):
    server_label: str
    type: Literal["mcp"]
    allowed_callers: NotRequired[Callers | None]
    allowed_tools: NotRequired[Json]
    authorization: NotRequired[str | None]
    connector_id: NotRequired[str | None]
    defer_loading: NotRequired[bool | None]
    headers: NotRequired[dict[str, str] | None]
    require_approval: NotRequired[Json]
    server_description: NotRequired[str | None]
    server_url: NotRequired[str | None]
    tunnel_id: NotRequired[str | None]


class CodeInterpreterToolParam(StrictDict):
    container: Json
    type: Literal["code_interpreter"]
    allowed_callers: NotRequired[Callers | None]


class NamespaceToolParam(StrictDict):
    description: str
    name: str
    tools: list[JsonObject]
    type: Literal["namespace"]


class ToolSearchToolParam(StrictDict):
    type: Literal["tool_search"]
    description: NotRequired[str | None]
    execution: NotRequired[Literal["server", "client"] | None]
    parameters: NotRequired[Json]


class OtherToolParam(OpenDict):
    """Hosted tools that require only their type; options pass unchanged."""

    type: Literal["apply_patch", "computer", "image_generation", "local_shell", "programmatic_tool_calling", "shell"]


ToolParam = Annotated[
    NeMoGymFunctionToolParam
    | CustomToolParam
    | FileSearchToolParam
    | WebSearchToolParam
    | WebSearchPreviewToolParam
    | ComputerUsePreviewToolParam
    | McpToolParam
    | CodeInterpreterToolParam
    | NamespaceToolParam
    | ToolSearchToolParam
    | OtherToolParam,
    TaggedUnion(),
    AcceptObjects,
]


class ToolChoiceNamedParam(StrictDict):
    name: str
    type: Literal["function", "custom"]


class ToolChoiceMcpParam(StrictDict):
    server_label: str
    type: Literal["mcp"]
    name: NotRequired[str | None]


class ToolChoiceAllowedParam(StrictDict):
    mode: Literal["auto", "required"]
    tools: list[JsonObject]
    type: Literal["allowed_tools"]


class ToolChoiceHostedParam(StrictDict):
    type: Literal[
        "apply_patch",
        "code_interpreter",
        "computer",
        "computer_use",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "local_shell",
        "shell",
        "web_search",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    ]


ToolChoiceMode = Literal["none", "auto", "required"]
ToolChoiceParam = Annotated[
    ToolChoiceMode | ToolChoiceNamedParam | ToolChoiceMcpParam | ToolChoiceAllowedParam | ToolChoiceHostedParam,
    TaggedUnion(),
    AcceptObjects,
]


class PlainFormatParam(StrictDict):
    type: Literal["text", "json_object"]


class JsonSchemaFormatParam(StrictDict):
    name: str
    schema: JsonObject
    type: Literal["json_schema"]
    description: NotRequired[str | None]
    strict: NotRequired[bool | None]


class TextConfigParam(StrictDict):
    format: NotRequired[Annotated[PlainFormatParam | JsonSchemaFormatParam, TaggedUnion(), AcceptObjects] | None]
    verbosity: NotRequired[Verbosity | None]


class ReasoningParam(StrictDict):
    effort: NotRequired[ReasoningEffort | None]
    generate_summary: NotRequired[SummaryDetail | None]
    summary: NotRequired[SummaryDetail | None]
    context: NotRequired[str | None]
    mode: NotRequired[str | None]


class PromptParam(StrictDict):
    id: str
    variables: NotRequired[JsonObject | None]
    version: NotRequired[str | None]


class FunctionTool(WireModel):
    name: str
    parameters: JsonObject | None = None
    strict: bool | None = None
    type: Literal["function"] = "function"
    description: str | None = None


Tool = Annotated[FunctionTool | TypedObject, TaggedUnion(OTHER)]


class TextConfig(WireModel):
    format: TypedObject | None = None
    verbosity: str | None = None


class Reasoning(WireModel):
    effort: str | None = None
    generate_summary: str | None = None
    summary: str | None = None


class Prompt(WireModel):
    id: str
    variables: JsonObject | None = None
    version: str | None = None
