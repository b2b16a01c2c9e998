"""A script for a model: what to say on each turn, and what to do wrong."""

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

MADE_BY_A_MODEL = frozenset({"function_call", "reasoning"})


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ScriptedCall(Part):
    name: str
    arguments: dict[str, Any] | str = {}
    """An object, or text sent as it is: that is how a model writes bad JSON."""


class Fault(Part):
    """What goes wrong on a turn, for the first `times` requests that reach it (default: all of them)."""

    kind: Literal["status", "stall", "not_json", "wrong_shape", "missing_fields", "cut_off", "half_body"]
    """`cut_off` ends the JSON in the middle; `half_body` also announces the rest and hangs up."""
    status: Annotated[int, Field(ge=400, le=599)] = 503
    message: str = "the script says so"
    headers: dict[str, str] = {}
    """Sent with a `status` fault, for example `Retry-After`."""
    seconds: Annotated[float, Field(ge=0)] = 3600.0
    """How long a `stall` lasts before the turn is answered after all."""
    fields: list[str] = ["output", "choices", "content"]
    """What `missing_fields` leaves out of the answer: by default what was said, in any dialect."""
    times: Annotated[int, Field(ge=1)] | None = None


class Turn(Part):
    """One answer. Reasoning comes first, then the text, then the tool calls."""

    text: str | None = None
    reasoning: str | None = None
    tool_calls: list[ScriptedCall] = []
    incomplete: Literal["max_output_tokens", "content_filter"] | None = None
    delay_seconds: Annotated[float, Field(ge=0)] = 0.0
    fault: Fault | None = None

    @model_validator(mode="after")
    def says_something(self) -> Self:
        if self.text is None and self.reasoning is None and not self.tool_calls and self.fault is None:
            raise ValueError("a turn needs a text, reasoning, tool_calls or a fault")
        return self


@dataclass(frozen=True)
class Scene:
    """Where a conversation stands when the model is asked; what a script's function is given."""

    number: int
    """How often the model has spoken before."""
    conversation: list[Any]
    """Responses items or chat messages, as the request has them."""
    tools: list[Any]
    seed: int

    @property
    def chance(self) -> Random:
        """Randomness that depends on the seed and on what was said, and on nothing else."""
        return Random(f"{self.seed}:{self.number}:{json.dumps(self.conversation, sort_keys=True, default=str)}")


Play = Callable[[Scene], "Turn | dict[str, Any] | str"]
"""A script as a function: the next turn, as an object, as its fields, or just its text."""


def loaded_function(path: str, where: str) -> Play:
    """The function at `package.module:name` or `package.module.name`.

    Raises:
        ConfigError: there is none.
    """
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"there is no function {path!r}: {error}", where=where, fix="give it as package.module:name"
        ) from error
    if not callable(found):
        raise ConfigError(f"{path!r} is not a function", where=where)
    play: Play = found
    return play


def as_turn(said: "Turn | dict[str, Any] | str") -> Turn:
    """A function's answer as a turn."""
    if isinstance(said, Turn):
        return said
    return Turn(text=said) if isinstance(said, str) else Turn.model_validate(said)


def seed_of(request: Any, default: int) -> int:
    """The seed a request asks for: its own field, or the one in `metadata.extra_body`, where repeats put it."""
    seed = getattr(request, "seed", None)
    extra = (request.metadata or {}).get("extra_body")
    if seed is None and extra:
        try:
            seed = json.loads(extra).get("seed")
        except (ValueError, AttributeError):
            seed = None
    return seed if isinstance(seed, int) else default


def turns_in_items(items: Sequence[Any]) -> int:
    """How often a model has spoken in this input: each unbroken run of its items is one turn."""
    made = [item.get("type") in MADE_BY_A_MODEL or item.get("role") == "assistant" for item in items]
    return sum(now and not before for before, now in zip([False, *made], made, strict=False))


def turns_in_messages(messages: Sequence[Any]) -> int:
    """The same for a chat: each assistant message is one turn."""
    return sum(message["role"] == "assistant" for message in messages)


def words(text: str | None) -> int:
    return len((text or "").split())


def as_response(
    turn: Turn, number: int, params: NeMoGymResponseCreateParamsNonStreaming, model: str
) -> NeMoGymResponse:
    """The turn as a Responses object. Ids and times depend on nothing but the turn's number."""
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
    asked, answered, thought = words(str(params.input)), words(turn.text), words(turn.reasoning)
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
            input_tokens=asked,
            input_tokens_details=NeMoGymResponseInputTokensDetails(cached_tokens=0),
            output_tokens=answered + thought,
            output_tokens_details=NeMoGymResponseOutputTokensDetails(reasoning_tokens=thought),
            total_tokens=asked + answered + thought,
        ),
    )


def as_chat_completion(turn: Turn, number: int, model: str) -> NeMoGymChatCompletion:
    """The turn as a chat completion; reasoning stands in `<think>` tags before the text."""
    thought = f"<think>{turn.reasoning}</think>" if turn.reasoning is not None else ""
    calls = [
        NeMoGymChatCompletionMessageToolCall(
            id=call_id(number, index),
            function=NeMoGymFunction(arguments=arguments_text(call), name=call.name),
            type="function",
        )
        for index, call in enumerate(turn.tool_calls)
    ]
    message = NeMoGymChatCompletionMessage(
        role="assistant", content=(thought + (turn.text or "")) or None, tool_calls=calls or None
    )
    stopped = {"max_output_tokens": "length", "content_filter": "content_filter", None: None}[turn.incomplete]
    choice = NeMoGymChoice(finish_reason=stopped or ("tool_calls" if calls else "stop"), index=0, message=message)
    return NeMoGymChatCompletion(
        id=f"chatcmpl_{number}", choices=[choice], created=0, model=model, object="chat.completion"
    )


def arguments_text(call: ScriptedCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)


def call_id(number: int, index: int) -> str:
    return f"call_{number}_{index}"
