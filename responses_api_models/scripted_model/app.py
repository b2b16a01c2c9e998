"""Scripted model: replies from a script or a function, offline and reproducibly, with faults on request.

The reply depends on the request alone: the number of model turns in its input, and the seed if the script has a
choice. So any number of conversations can run concurrently, in any number of processes.
"""

import asyncio
import importlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import orjson
from fastapi import HTTPException, Request
from fastapi.responses import Response
from pydantic import Field, PrivateAttr, model_validator

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.errors import ConfigError, DeadlineExceeded
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
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
from nemo_gym.rollout_correlation import current_rollout_id
from nemo_gym.transport import deadlines
from nemo_gym.wire.base import has_token_fields
from nemo_gym.wire.chat_completions import CompletionTokensDetails, CompletionUsage
from nemo_gym.wire.responses import training_variant_of
from responses_api_models.scripted_model.script import Fault, Play, Scene, ScriptedCall, Turn

MODEL_ITEM_TYPES = frozenset({"function_call", "reasoning"})

ModelReply = NeMoGymResponse | NeMoGymChatCompletion


class ScriptedModelConfig(BaseResponsesAPIModelConfig):
    script: Annotated[list[Turn | Annotated[list[Turn], Field(min_length=1)]], Field(min_length=1)] | None = None
    """The first, second, … turn of the model; a list in place of a turn is a choice."""
    function: str | None = None
    """Instead of a script: `package.module:name` of a function that takes a `Scene` and returns a turn."""
    after_last: Literal["repeat", "cycle", "fail"] = "repeat"
    """After the end of the script: repeat the last turn, start over, or reply with 400."""
    seed: int = 0
    """Seed for choices if the request has none."""
    model: str = "scripted"
    """Model name in every reply."""
    token_ids: bool = False
    """Add token fields to replies of the Responses dialect, one token for each byte, to test trainers offline."""

    @model_validator(mode="after")
    def _check_one_source(self) -> Self:
        if (self.script is None) == (self.function is None):
            raise ValueError("give a script or a function, and not both")
        return self


class ScriptedModel(SimpleResponsesAPIModel):
    HOSTING = "cell"
    REPORTS_EVERY_COUNT = True

    config: ScriptedModelConfig
    _faults: Counter[int] = PrivateAttr(default_factory=Counter)
    _function: Play | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        if self.config.function is not None:
            self._function = load_function(self.config.function, self.config.name)

    @property
    def served_model_name(self) -> str:
        return self.config.model

    async def count_prompt_tokens(self, request: Request, params: Any) -> int:  # noqa: ARG002
        """Count the words of the input, as the usage of replies does."""
        return count_words(str(params.input))

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        items = [] if isinstance(body.input, str) else body.model_dump(exclude_unset=True)["input"]
        number = turns_in_items(items)
        conversation = items or [{"role": "user", "content": body.input}]
        scene = Scene(number, conversation, list(body.tools or ()), seed_of(body, self.config.seed))
        turn = self.next_turn(scene)
        reply = as_response(turn, number, body, self.config.model)
        if self.config.token_ids:
            add_token_fields(reply, conversation)
        return await self._send(turn, number, reply)  # type: ignore[return-value]

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        number = turns_in_messages(body.messages)
        scene = Scene(number, list(body.messages), list(body.tools or ()), seed_of(body, self.config.seed))
        turn = self.next_turn(scene)
        reply = as_chat_completion(turn, number, self.config.model, count_words(str(body.messages)))
        return await self._send(turn, number, reply)  # type: ignore[return-value]

    def next_turn(self, scene: Scene) -> Turn:
        """Return the turn that follows the model's earlier turns."""
        if self._function is not None:
            return as_turn(self._function(scene))
        number, script = scene.number, self.config.script or []
        if number >= len(script) and self.config.after_last == "fail":
            raise HTTPException(400, f"the script has {len(script)} turns, and the request needs turn {number + 1}")
        index = min(number, len(script) - 1) if self.config.after_last == "repeat" else number % len(script)
        entry = script[index]
        return entry if isinstance(entry, Turn) else scene.chance.choice(entry)

    async def _send(self, turn: Turn, number: int, reply: ModelReply) -> ModelReply | Response:
        """Wait, inject the fault of the turn, or return the reply."""
        await asyncio.sleep(turn.delay_seconds)
        fault = turn.fault
        if fault is None or (fault.times is not None and self._faults[number] >= fault.times):
            return reply
        self._faults[number] += 1
        return await inject_fault(fault, reply, self.config.name)


async def inject_fault(fault: Fault, reply: ModelReply, where: str) -> ModelReply | Response:
    """Return the reply with its fault, or raise the error that the fault describes."""
    if fault.kind == "status":
        raise HTTPException(fault.status, fault.message, headers=fault.headers)
    if fault.kind == "stall":
        await stall(fault.seconds, where)
        return reply
    whole = reply.model_dump_json().encode()
    if fault.kind == "half_body":
        return Response(whole[: len(whole) // 2], headers={"Content-Length": str(len(whole))})
    content = {
        "not_json": fault.message.encode(),
        "cut_off": whole[: len(whole) // 2],
        "missing_fields": reply.model_dump_json(exclude=set(fault.fields)).encode(),
        "wrong_shape": orjson.dumps({"unexpected": fault.message}),
    }[fault.kind]
    return Response(content, media_type="application/json")


async def stall(seconds: float, where: str) -> None:
    """Wait `seconds`, but not beyond the caller's deadline.

    Raises:
        DeadlineExceeded: the deadline came first.
    """
    left = deadlines.shorter_of(seconds, deadlines.seconds_left()) or 0.0
    await asyncio.sleep(left)
    if left < seconds:
        raise DeadlineExceeded(f"the script stalls for {seconds:g} s", where=where)


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
    """Build the Responses object of a turn. Ids depend only on the rollout and the number of the turn."""
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


def add_token_fields(reply: NeMoGymResponse, conversation: Sequence[Any]) -> None:
    """Set the token fields of the last item. The prompt continues the tokens of the last turn that has them."""
    prompt: list[int] = []
    new_items: list[Any] = []
    for item in conversation:
        if has_token_fields(item):
            prompt, new_items = [*item["prompt_token_ids"], *item["generation_token_ids"]], []
        else:
            new_items.append(item)
    generation = list(orjson.dumps([item.model_dump(exclude_unset=True) for item in reply.output]))
    fields = {
        "prompt_token_ids": prompt + list(orjson.dumps(new_items)),
        "generation_token_ids": generation,
        "generation_log_probs": [-1 / (1 + token) for token in generation],
    }
    last = reply.output[-1]
    reply.output[-1] = training_variant_of(type(last)).model_validate({**last.model_dump(exclude_unset=True), **fields})


def as_chat_completion(turn: Turn, number: int, model: str, read: int) -> NeMoGymChatCompletion:
    """Build the chat completion of a turn, which answers a conversation of `read` words."""
    calls = [
        NeMoGymChatCompletionMessageToolCall(
            id=call_id(number, index),
            function=NeMoGymFunction(arguments=arguments_text(call), name=call.name),
            type="function",
        )
        for index, call in enumerate(turn.tool_calls)
    ]
    message = NeMoGymChatCompletionMessage(role="assistant", content=turn.text, tool_calls=calls or None)
    if turn.reasoning is not None:
        message.reasoning_content = turn.reasoning  # type: ignore[attr-defined]  # where chat servers put it
    reasoning = count_words(turn.reasoning)
    written = count_words(turn.text) + reasoning
    usage = CompletionUsage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)
    usage.completion_tokens_details = CompletionTokensDetails(reasoning_tokens=reasoning)
    cut = {"max_output_tokens": "length", "content_filter": "content_filter", None: None}[turn.incomplete]
    choice = NeMoGymChoice(finish_reason=cut or ("tool_calls" if calls else "stop"), index=0, message=message)
    return NeMoGymChatCompletion(
        id=f"chatcmpl_{number}", choices=[choice], created=0, model=model, object="chat.completion", usage=usage
    )


def arguments_text(call: ScriptedCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)


def call_id(number: int, index: int) -> str:
    """Return the id of a tool call; it contains the rollout id, if known, so that ids differ between rollouts."""
    rollout_id = current_rollout_id()
    return f"call_{number}_{index}" if rollout_id is None else f"call_{rollout_id}_{number}_{index}"


if __name__ == "__main__":
    ScriptedModel.run_webserver()
