"""Items of hosted tools, which run at the provider (web search, MCP, code interpreter), and of their results."""

from typing import ClassVar, Literal, TypeAlias, get_args

from nemo_gym.wire.base import ItemModel, ItemStatus, Json, TypedObject, WireModel
from nemo_gym.wire.input_content import InputContent


class NeMoGymMcpCall(ItemModel):
    id: str | None = None
    arguments: str
    name: str
    server_label: str
    type: Literal["mcp_call"] = "mcp_call"
    approval_request_id: str | None = None
    error: Json = None
    output: str | None = None
    status: str | None = None


class McpListedTool(WireModel):
    input_schema: Json
    name: str
    annotations: Json = None
    description: str | None = None


class NeMoGymMcpListTools(ItemModel):
    id: str | None = None
    server_label: str
    tools: list[McpListedTool]
    type: Literal["mcp_list_tools"] = "mcp_list_tools"
    error: Json = None


class NeMoGymMcpApprovalRequest(ItemModel):
    id: str | None = None
    arguments: str
    name: str
    server_label: str
    type: Literal["mcp_approval_request"] = "mcp_approval_request"


class NeMoGymMcpApprovalResponse(ItemModel):
    approval_request_id: str
    approve: bool
    type: Literal["mcp_approval_response"] = "mcp_approval_response"
    id: str | None = None
    reason: str | None = None


class FileSearchResult(WireModel):
    attributes: dict[str, str | float | bool] | None = None
    file_id: str | None = None
    filename: str | None = None
    score: float | None = None
    text: str | None = None


class NeMoGymFileSearchToolCall(ItemModel):
    id: str
    queries: list[str]
    status: Literal["in_progress", "searching", "completed", "incomplete", "failed"]
    type: Literal["file_search_call"] = "file_search_call"
    results: list[FileSearchResult] | None = None


class NeMoGymFunctionWebSearch(ItemModel):
    id: str
    action: TypedObject
    status: Literal["in_progress", "searching", "completed", "failed", "incomplete"]
    type: Literal["web_search_call"] = "web_search_call"


class SafetyCheck(WireModel):
    id: str
    code: str | None = None
    message: str | None = None


class NeMoGymComputerToolCall(ItemModel):
    id: str
    action: TypedObject | None = None
    call_id: str
    pending_safety_checks: list[SafetyCheck]
    status: ItemStatus
    type: Literal["computer_call"] = "computer_call"


class ComputerScreenshot(WireModel):
    type: Literal["computer_screenshot"] = "computer_screenshot"
    file_id: str | None = None
    image_url: str | None = None


class NeMoGymComputerCallOutput(ItemModel):
    call_id: str
    output: ComputerScreenshot
    type: Literal["computer_call_output"] = "computer_call_output"
    id: str | None = None
    acknowledged_safety_checks: list[SafetyCheck] | None = None
    status: ItemStatus | None = None


class NeMoGymImageGenerationCall(ItemModel):
    id: str
    result: str | None = None
    status: Literal["in_progress", "completed", "generating", "failed"]
    type: Literal["image_generation_call"] = "image_generation_call"


class CodeInterpreterOutput(WireModel):
    type: Literal["logs", "image"]


class NeMoGymCodeInterpreterToolCall(ItemModel):
    id: str
    code: str | None = None
    container_id: str
    outputs: list[CodeInterpreterOutput] | None = None
    status: Literal["in_progress", "completed", "incomplete", "interpreting", "failed"]
    type: Literal["code_interpreter_call"] = "code_interpreter_call"


class LocalShellAction(WireModel):
    command: list[str]
    env: dict[str, str]
    type: Literal["exec"] = "exec"
    timeout_ms: int | None = None
    user: str | None = None
    working_directory: str | None = None


class NeMoGymLocalShellCall(ItemModel):
    id: str
    action: LocalShellAction
    call_id: str
    status: ItemStatus
    type: Literal["local_shell_call"] = "local_shell_call"


class NeMoGymLocalShellCallOutput(ItemModel):
    id: str
    output: str
    type: Literal["local_shell_call_output"] = "local_shell_call_output"
    status: ItemStatus | None = None


class NeMoGymCustomToolCall(ItemModel):
    call_id: str
    input: str
    name: str
    type: Literal["custom_tool_call"] = "custom_tool_call"
    id: str | None = None


class NeMoGymCustomToolCallOutput(ItemModel):
    call_id: str
    output: InputContent
    type: Literal["custom_tool_call_output"] = "custom_tool_call_output"
    id: str | None = None


class ProviderItem(ItemModel):
    """An item of a type that only OpenAI interprets; kept unchanged."""

    wire_tag: ClassVar[str] = "provider_item"

    type: str
    id: str | None = None


PROVIDER_ITEM_TYPES = frozenset(
    {"additional_tools", "apply_patch_call", "apply_patch_call_output", "compaction", "compaction_trigger"}
    | {"program", "program_output", "shell_call", "shell_call_output", "tool_search_call", "tool_search_output"}
)
"""Types accepted as `ProviderItem`. An output item of any other unknown type is an error that names the type."""

HostedItem: TypeAlias = (
    NeMoGymMcpCall
    | NeMoGymMcpListTools
    | NeMoGymMcpApprovalRequest
    | NeMoGymMcpApprovalResponse
    | NeMoGymFileSearchToolCall
    | NeMoGymFunctionWebSearch
    | NeMoGymComputerToolCall
    | NeMoGymComputerCallOutput
    | NeMoGymImageGenerationCall
    | NeMoGymCodeInterpreterToolCall
    | NeMoGymLocalShellCall
    | NeMoGymLocalShellCallOutput
    | NeMoGymCustomToolCall
    | NeMoGymCustomToolCallOutput
)
HOSTED_ITEMS: tuple[type[ItemModel], ...] = get_args(HostedItem)

# Names of the same classes for items in a response.
NeMoGymResponseMcpCall = NeMoGymMcpCall
NeMoGymResponseMcpListTools = NeMoGymMcpListTools
NeMoGymResponseMcpApprovalRequest = NeMoGymMcpApprovalRequest
NeMoGymResponseMcpApprovalResponse = NeMoGymMcpApprovalResponse
NeMoGymResponseFileSearchToolCall = NeMoGymFileSearchToolCall
NeMoGymResponseFunctionWebSearch = NeMoGymFunctionWebSearch
NeMoGymResponseComputerToolCall = NeMoGymComputerToolCall
NeMoGymResponseComputerCallOutput = NeMoGymComputerCallOutput
NeMoGymResponseImageGenerationCall = NeMoGymImageGenerationCall
NeMoGymResponseCodeInterpreterToolCall = NeMoGymCodeInterpreterToolCall
NeMoGymResponseLocalShellCall = NeMoGymLocalShellCall
NeMoGymResponseLocalShellCallOutput = NeMoGymLocalShellCallOutput
NeMoGymResponseCustomToolCall = NeMoGymCustomToolCall
NeMoGymResponseCustomToolCallOutputItem = NeMoGymCustomToolCallOutput
