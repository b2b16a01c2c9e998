"""Tools, tool choice, text format, reasoning and prompt.

In a request they are strict dictionaries, so that a misspelt key is an error. A response only echoes them: there they
are objects that keep whatever the provider says.
"""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Discriminator, Tag, with_config
from typing_extensions import TypedDict

from nemo_gym.wire.base import DUMP_BY_CLASS, WIRE_CONFIG, Json, JsonObject, OpenForeign, WireModel, open_dict
from nemo_gym.wire.parts import part_type

STRICT = ConfigDict(**{**WIRE_CONFIG, "extra": "forbid"})

Callers = list[Literal["direct", "programmatic"]]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
SummaryDetail = Literal["auto", "concise", "detailed"]
Verbosity = Literal["low", "medium", "high"]

_FunctionToolParamFields = TypedDict("_FunctionToolParamFields", {"async": NotRequired[bool | None]})


@with_config(STRICT)
class NeMoGymFunctionToolParam(_FunctionToolParamFields):
    name: str
    parameters: NotRequired[JsonObject | None]
    strict: NotRequired[bool | None]
    type: Literal["function"]
    description: NotRequired[str | None]
    allowed_callers: NotRequired[Callers | None]
    defer_loading: NotRequired[bool | None]
    output_schema: NotRequired[JsonObject | None]


@with_config(STRICT)
class CustomToolParam(_FunctionToolParamFields):
    name: str
    type: Literal["custom"]
    description: NotRequired[str | None]
    format: NotRequired[Json]
    allowed_callers: NotRequired[Callers | None]
    defer_loading: NotRequired[bool | None]


@with_config(STRICT)
class FileSearchToolParam(TypedDict):
    type: Literal["file_search"]
    vector_store_ids: list[str]
    filters: NotRequired[Json]
    max_num_results: NotRequired[int | None]
    ranking_options: NotRequired[Json]


@with_config(STRICT)
class WebSearchToolParam(TypedDict):
    type: Literal["web_search", "web_search_2025_08_26"]
    external_web_access: NotRequired[bool | None]
    filters: NotRequired[Json]
    search_context_size: NotRequired[Literal["low", "medium", "high"] | None]
    user_location: NotRequired[Json]


@with_config(STRICT)
class WebSearchPreviewToolParam(TypedDict):
    type: Literal["web_search_preview", "web_search_preview_2025_03_11"]
    search_content_types: NotRequired[list[Literal["text", "image"]] | None]
    search_context_size: NotRequired[Literal["low", "medium", "high"] | None]
    user_location: NotRequired[Json]


@with_config(STRICT)
class ComputerUsePreviewToolParam(TypedDict):
    display_height: int
    display_width: int
    environment: Literal["windows", "mac", "linux", "ubuntu", "browser"]
    type: Literal["computer_use_preview"]


@with_config(STRICT)
class McpToolParam(TypedDict):
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


@with_config(STRICT)
class CodeInterpreterToolParam(TypedDict):
    container: Json
    type: Literal["code_interpreter"]
    allowed_callers: NotRequired[Callers | None]


@with_config(STRICT)
class NamespaceToolParam(TypedDict):
    description: str
    name: str
    tools: list[JsonObject]
    type: Literal["namespace"]


@with_config(STRICT)
class ToolSearchToolParam(TypedDict):
    type: Literal["tool_search"]
    description: NotRequired[str | None]
    execution: NotRequired[Literal["server", "client"] | None]
    parameters: NotRequired[Json]


@open_dict
class OtherToolParam(TypedDict):
    """Hosted tools with nothing required but their name; options pass as given."""

    type: Literal["apply_patch", "computer", "image_generation", "local_shell", "programmatic_tool_calling", "shell"]


_TOOL_BRANCHES = {
    "function": "function",
    "custom": "custom",
    "file_search": "file_search",
    "web_search": "web_search",
    "web_search_2025_08_26": "web_search",
    "web_search_preview": "web_search_preview",
    "web_search_preview_2025_03_11": "web_search_preview",
    "computer_use_preview": "computer_use_preview",
    "mcp": "mcp",
    "code_interpreter": "code_interpreter",
    "namespace": "namespace",
    "tool_search": "tool_search",
    "apply_patch": "other",
    "computer": "other",
    "image_generation": "other",
    "local_shell": "other",
    "programmatic_tool_calling": "other",
    "shell": "other",
}


def tool_type(tool: Any) -> str | None:
    """The union branch of a tool; an unknown type is returned as it is, for the error to name."""
    found = part_type(tool)
    return None if found is None else _TOOL_BRANCHES.get(found, found)


ToolParam = Annotated[
    Annotated[NeMoGymFunctionToolParam, Tag("function")]
    | Annotated[CustomToolParam, Tag("custom")]
    | Annotated[FileSearchToolParam, Tag("file_search")]
    | Annotated[WebSearchToolParam, Tag("web_search")]
    | Annotated[WebSearchPreviewToolParam, Tag("web_search_preview")]
    | Annotated[ComputerUsePreviewToolParam, Tag("computer_use_preview")]
    | Annotated[McpToolParam, Tag("mcp")]
    | Annotated[CodeInterpreterToolParam, Tag("code_interpreter")]
    | Annotated[NamespaceToolParam, Tag("namespace")]
    | Annotated[ToolSearchToolParam, Tag("tool_search")]
    | Annotated[OtherToolParam, Tag("other")],
    Discriminator(tool_type),
    DUMP_BY_CLASS,
    OpenForeign,
]


@with_config(STRICT)
class ToolChoiceNamedParam(TypedDict):
    name: str
    type: Literal["function", "custom"]


@with_config(STRICT)
class ToolChoiceMcpParam(TypedDict):
    server_label: str
    type: Literal["mcp"]
    name: NotRequired[str | None]


@with_config(STRICT)
class ToolChoiceAllowedParam(TypedDict):
    mode: Literal["auto", "required"]
    tools: list[JsonObject]
    type: Literal["allowed_tools"]


@with_config(STRICT)
class ToolChoiceHostedParam(TypedDict):
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


def tool_choice_branch(choice: Any) -> str:
    """The union branch of a tool choice: a mode in one word, or what kind of tool is chosen."""
    if isinstance(choice, str):
        return "mode"
    found = part_type(choice)
    if found in ("function", "custom"):
        return "named"
    return found if found in ("mcp", "allowed_tools") else "hosted"


ToolChoiceMode = Literal["none", "auto", "required"]
ToolChoiceParam = Annotated[
    Annotated[ToolChoiceMode, Tag("mode")]
    | Annotated[ToolChoiceNamedParam, Tag("named")]
    | Annotated[ToolChoiceMcpParam, Tag("mcp")]
    | Annotated[ToolChoiceAllowedParam, Tag("allowed_tools")]
    | Annotated[ToolChoiceHostedParam, Tag("hosted")],
    Discriminator(tool_choice_branch),
    DUMP_BY_CLASS,
    OpenForeign,
]


@with_config(STRICT)
class PlainFormatParam(TypedDict):
    type: Literal["text", "json_object"]


@with_config(STRICT)
class JsonSchemaFormatParam(TypedDict):
    name: str
    schema: JsonObject
    type: Literal["json_schema"]
    description: NotRequired[str | None]
    strict: NotRequired[bool | None]


def _format_branch(text_format: Any) -> str:
    return "json_schema" if part_type(text_format) == "json_schema" else "plain"


@with_config(STRICT)
class TextConfigParam(TypedDict):
    format: NotRequired[
        Annotated[
            Annotated[PlainFormatParam, Tag("plain")] | Annotated[JsonSchemaFormatParam, Tag("json_schema")],
            Discriminator(_format_branch),
            DUMP_BY_CLASS,
            OpenForeign,
        ]
        | None
    ]
    verbosity: NotRequired[Verbosity | None]


@with_config(STRICT)
class ReasoningParam(TypedDict):
    effort: NotRequired[ReasoningEffort | None]
    generate_summary: NotRequired[SummaryDetail | None]
    summary: NotRequired[SummaryDetail | None]
    context: NotRequired[str | None]
    mode: NotRequired[str | None]


@with_config(STRICT)
class PromptParam(TypedDict):
    id: str
    variables: NotRequired[JsonObject | None]
    version: NotRequired[str | None]


class FunctionTool(WireModel):
    name: str
    parameters: JsonObject | None = None
    strict: bool | None = None
    type: Literal["function"] = "function"
    description: str | None = None


class HostedTool(WireModel):
    """Any tool but a function; its further fields depend on the type."""

    type: str


def _echoed_tool_branch(tool: Any) -> str:
    return "function" if part_type(tool) == "function" else "hosted"


Tool = Annotated[
    Annotated[FunctionTool, Tag("function")] | Annotated[HostedTool, Tag("hosted")],
    Discriminator(_echoed_tool_branch),
    DUMP_BY_CLASS,
]


class NamedToolChoice(WireModel):
    type: str


class TextFormat(WireModel):
    type: str


class TextConfig(WireModel):
    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(WireModel):
    effort: str | None = None
    generate_summary: str | None = None
    summary: str | None = None


class Prompt(WireModel):
    id: str
    variables: JsonObject | None = None
    version: str | None = None
