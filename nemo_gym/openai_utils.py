# mypy: implicit-reexport
# ruff: noqa: F401 - the imported names are the public names of this module
"""Public names of the OpenAI wire types, and the client.

The client is loaded on first use: most servers need only the types, and it imports an HTTP stack.
"""

import importlib
from typing import TYPE_CHECKING, Any

from nemo_gym.wire.base import REQUIRED_TOKEN_METADATA_FIELDS, TOKEN_METADATA_FIELDS, TokenIDLogProbMixin
from nemo_gym.wire.chat_completions import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionAssistantMessageForTrainingParam,
    NeMoGymChatCompletionAssistantMessageParam,
    NeMoGymChatCompletionContentPartFileParam,
    NeMoGymChatCompletionContentPartImageParam,
    NeMoGymChatCompletionContentPartInputAudioParam,
    NeMoGymChatCompletionContentPartParam,
    NeMoGymChatCompletionContentPartRefusalParam,
    NeMoGymChatCompletionContentPartTextParam,
    NeMoGymChatCompletionContentPartVideoParam,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymChatCompletionCustomToolParam,
    NeMoGymChatCompletionDeveloperMessageParam,
    NeMoGymChatCompletionMessage,
    NeMoGymChatCompletionMessageCustomToolCall,
    NeMoGymChatCompletionMessageCustomToolCallParam,
    NeMoGymChatCompletionMessageForTraining,
    NeMoGymChatCompletionMessageParam,
    NeMoGymChatCompletionMessageToolCall,
    NeMoGymChatCompletionMessageToolCallFunctionParam,
    NeMoGymChatCompletionMessageToolCallParam,
    NeMoGymChatCompletionSystemMessageParam,
    NeMoGymChatCompletionToolMessageParam,
    NeMoGymChatCompletionToolParam,
    NeMoGymChatCompletionUserMessageParam,
    NeMoGymChoice,
    NeMoGymFunction,
    NeMoGymFunctionDefinition,
)
from nemo_gym.wire.hosted_tool_calls import (
    NeMoGymCodeInterpreterToolCall,
    NeMoGymComputerCallOutput,
    NeMoGymComputerToolCall,
    NeMoGymCustomToolCall,
    NeMoGymCustomToolCallOutput,
    NeMoGymFileSearchToolCall,
    NeMoGymFunctionWebSearch,
    NeMoGymImageGenerationCall,
    NeMoGymLocalShellCall,
    NeMoGymLocalShellCallOutput,
    NeMoGymMcpApprovalRequest,
    NeMoGymMcpApprovalResponse,
    NeMoGymMcpCall,
    NeMoGymMcpListTools,
)
from nemo_gym.wire.input_content import (
    NeMoGymResponseInputAudio,
    NeMoGymResponseInputFile,
    NeMoGymResponseInputImage,
    NeMoGymResponseInputText,
    NeMoGymResponseInputVideo,
)
from nemo_gym.wire.responses import (
    RESPONSES_TO_TRAIN,
    NeMoGymEasyInputMessage,
    NeMoGymEasyInputMessageForTraining,
    NeMoGymFunctionCallOutput,
    NeMoGymMessage,
    NeMoGymMessageForTraining,
    NeMoGymReasoningText,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseFunctionToolCallForTraining,
    NeMoGymResponseInput,
    NeMoGymResponseInputItem,
    NeMoGymResponseInputTokensDetails,
    NeMoGymResponseOutputItem,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputMessageForTraining,
    NeMoGymResponseOutputRefusal,
    NeMoGymResponseOutputText,
    NeMoGymResponseOutputTokensDetails,
    NeMoGymResponseReasoningItem,
    NeMoGymResponseReasoningItemForTraining,
    NeMoGymResponseUsage,
    NeMoGymSummary,
    accumulate_response_usage,
    training_variant_of,
)
from nemo_gym.wire.responses_options import NeMoGymFunctionToolParam

if TYPE_CHECKING:
    from nemo_gym.transport.model_client import RATE_LIMIT_ERROR_CODES, RETRY_ERROR_CODES, NeMoGymAsyncOpenAI

_CLIENT_MODULE = "nemo_gym.transport.model_client"
_CLIENT_NAMES = frozenset({"NeMoGymAsyncOpenAI", "RATE_LIMIT_ERROR_CODES", "RETRY_ERROR_CODES"})


def __getattr__(name: str) -> Any:
    if name not in _CLIENT_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_CLIENT_MODULE), name)
    globals()[name] = value
    return value
