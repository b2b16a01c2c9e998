"""The script of a model: its turns and faults, and their form in the Responses and chat APIs."""

import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_gym.errors import ConfigError
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionMessage,
    NeMoGymChatCompletionMessageToolCall,
    NeMoGymChoice,
    NeMoGymFunction,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseInputTokensDetails,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputText,
    NeMoGymResponseOutputTokensDetails,
    NeMoGymResponseReasoningItem,
    NeMoGymResponseUsage,
    NeMoGymSummary,
)

MODEL_ITEM_TYPES = frozenset({"function_call", "reasoning"})


class ScriptPart(BaseModel):
    """A part of a script, in which unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


class ScriptedCall(ScriptPart):
    name: str
    arguments: dict[str, Any] | str = {}
    """An object, or text that is sent unchanged, for example invalid JSON."""


class Fault(ScriptPart):
    """A fault of a turn, for the first `times` requests that reach the turn (default: all)."""

    kind: Literal["status", "stall", "not_json", "wrong_shape", "missing_fields", "cut_off", "half_body"]
    """`cut_off` sends half of the JSON; `half_body` also announces the full length and closes the connection."""
    status: Annotated[int, Field(ge=400, le=599)] = 503
    message: str = "the script injects this fault"
    headers: dict[str, str] = {}
    """Sent with a `status` fault, for example `Retry-After`."""
    seconds: Annotated[float, Field(ge=0)] = 3600.0
    """Duration of a `stall`, after which the turn is sent."""
    fields: list[str] = ["output", "choices", "content"]
    """Fields that `missing_fields` removes from the reply; by default the content, in any dialect."""
    times: Annotated[int, Field(ge=1)] | None = None


class Turn(ScriptPart):
    """One reply of the model: reasoning first, then the text, then the tool calls."""

    text: str | None = None
    reasoning: str | None = None
    tool_calls: list[ScriptedCall] = []
    incomplete: Literal["max_output_tokens", "content_filter"] | None = None
    delay_seconds: Annotated[float, Field(ge=0)] = 0.0
    fault: Fault | None = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.text is None and self.reasoning is None and not self.tool_calls and self.fault is None:
            raise ValueError("a turn needs a text, reasoning, tool_calls or a fault")
        return self


@dataclass(frozen=True)
class Scene:
    """The state of a conversation before a model turn; the argument of a script's function."""

    number: int
    """Number of earlier model turns."""
    conversation: list[Any]
    """Responses items or chat messages of the request."""
    tools: list[Any]
    seed: int

    @property
    def chance(self) -> Random:
        """A random generator that depends only on the seed and the conversation."""
        return Random(f"{self.seed}:{self.number}:{json.dumps(self.conversation, sort_keys=True, default=str)}")


Play = Callable[[Scene], "Turn | dict[str, Any] | str"]
"""A script as a function that returns the next turn as an object, its fields, or just its text."""


def load_function(path: str, where: str) -> Play:
    """Import the function `package.module:name` or `package.module.name`.

    Raises:
        ConfigError: it does not exist.
    """
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"there is no function {path!r}: {error}", where=where, fix="give it as package.module:name"
        ) from error
    if not callable(function):
        raise ConfigError(f"{path!r} is not a function", where=where)
    play: Play = function
    return play


def as_turn(result: "Turn | dict[str, Any] | str") -> Turn:
    """Convert the result of a script's function to a turn."""
    if isinstance(result, Turn):
        return result
    return Turn(text=result) if isinstance(result, str) else Turn.model_validate(result)


def seed_of(request: Any, default: int) -> int:
    """Return the seed of a request: its field, or the one in `metadata.extra_body`, where repeats put it."""
    seed = getattr(request, "seed", None)
    extra = (request.metadata or {}).get("extra_body")
    if seed is None and extra:
        try:
            seed = json.loads(extra).get("seed")
        except (ValueError, AttributeError):
            seed = None
    return seed if isinstance(seed, int) else default


def turns_in_items(items: Sequence[Any]) -> int:
    """Count the model turns in an input: each unbroken run of model items is one turn."""
    by_model = [item.get("type") in MODEL_ITEM_TYPES or item.get("role") == "assistant" for item in items]
    return sum(now and not before for before, now in zip([False, *by_model], by_model, strict=False))


def turns_in_messages(messages: Sequence[Any]) -> int:
    """Count the model turns in a chat: each assistant message is one turn."""
    return sum(message["role"] == "assistant" for message in messages)


def count_words(text: str | None) -> int:
    return len((text or "").split())


def as_response(
    turn: Turn, number: int, params: NeMoGymResponseCreateParamsNonStreaming, model: str
) -> NeMoGymResponse:
    """Build the Responses object of a turn. Ids and times depend only on the number of the turn."""
    output: list[Any] = []
    if turn.reasoning is not None:
        summary = NeMoGymSummary(text=turn.reasoning, type="summary_text")
        output.append(NeMoGymResponseReasoningItem(id=f"rs_{number}", summary=[summary], type="reasoning"))
    if turn.text is not None:
        text = NeMoGymResponseOutputText(annotations=[], text=turn.text, type="output_text")
        output.append(
            NeMoGymResponseOutputMessage(
                id=f"msg_{number}", content=[text], role="assistant", status="completed", type="message"
            )
        )
    for index, call in enumerate(turn.tool_calls):
        output.append(
            NeMoGymResponseFunctionToolCall(
                arguments=arguments_text(call),
                call_id=call_id(number, index),
                name=call.name,
                type="function_call",
                id=f"fc_{number}_{index}",
                status="completed",
            )
        )
    read, written, reasoning = count_words(str(params.input)), count_words(turn.text), count_words(turn.reasoning)
    return NeMoGymResponse(
        id=f"resp_{number}",
        created_at=0.0,
        model=model,
        object="response",
        output=output,
        parallel_tool_calls=params.parallel_tool_calls,
        tool_choice=params.tool_choice,
        tools=params.tools,
        status="incomplete" if turn.incomplete else "completed",
        incomplete_details={"reason": turn.incomplete} if turn.incomplete else None,
        usage=NeMoGymResponseUsage(
            input_tokens=read,
            input_tokens_details=NeMoGymResponseInputTokensDetails(cached_tokens=0),
            output_tokens=written + reasoning,
            output_tokens_details=NeMoGymResponseOutputTokensDetails(reasoning_tokens=reasoning),
            total_tokens=read + written + reasoning,
        ),
    )


def as_chat_completion(turn: Turn, number: int, model: str) -> NeMoGymChatCompletion:
    """Build the chat completion of a turn; reasoning is in `<think>` tags before the text."""
    reasoning = f"<think>{turn.reasoning}</think>" if turn.reasoning is not None else ""
    calls = [
        NeMoGymChatCompletionMessageToolCall(
            id=call_id(number, index),
            function=NeMoGymFunction(arguments=arguments_text(call), name=call.name),
            type="function",
        )
        for index, call in enumerate(turn.tool_calls)
    ]
    message = NeMoGymChatCompletionMessage(
        role="assistant", content=(reasoning + (turn.text or "")) or None, tool_calls=calls or None
    )
    cut = {"max_output_tokens": "length", "content_filter": "content_filter", None: None}[turn.incomplete]
    choice = NeMoGymChoice(finish_reason=cut or ("tool_calls" if calls else "stop"), index=0, message=message)
    return NeMoGymChatCompletion(
        id=f"chatcmpl_{number}", choices=[choice], created=0, model=model, object="chat.completion"
    )


def arguments_text(call: ScriptedCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)


def call_id(number: int, index: int) -> str:
    return f"call_{number}_{index}"
