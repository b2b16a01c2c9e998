"""Scripted model: replies from a script or a function, offline and reproducibly, with faults on request.

The reply depends on the request alone: the number of model turns in its input, and the seed if the script has a
choice. So any number of conversations can run concurrently, in any number of processes.
"""

import asyncio
from collections import Counter
from typing import Annotated, Any, Literal, Self

import orjson
from fastapi import HTTPException
from fastapi.responses import Response
from pydantic import Field, PrivateAttr, model_validator

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.errors import DeadlineExceeded
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.transport import deadlines
from responses_api_models.scripted_model.script import (
    Fault,
    Play,
    Scene,
    Turn,
    as_chat_completion,
    as_response,
    as_turn,
    load_function,
    seed_of,
    turns_in_items,
    turns_in_messages,
)

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

    @model_validator(mode="after")
    def _check_one_source(self) -> Self:
        if (self.script is None) == (self.function is None):
            raise ValueError("give a script or a function, and not both")
        return self


class ScriptedModel(SimpleResponsesAPIModel):
    HOSTING = "cell"

    config: ScriptedModelConfig
    _faults: Counter[int] = PrivateAttr(default_factory=Counter)
    _function: Play | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        if self.config.function is not None:
            self._function = load_function(self.config.function, self.config.name)

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        items = [] if isinstance(body.input, str) else body.model_dump(exclude_unset=True)["input"]
        number = turns_in_items(items)
        conversation = items or [{"role": "user", "content": body.input}]
        scene = Scene(number, conversation, list(body.tools or ()), seed_of(body, self.config.seed))
        turn = self.next_turn(scene)
        reply = as_response(turn, number, body, self.config.model)
        return await self._send(turn, number, reply)  # type: ignore[return-value]

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        number = turns_in_messages(body.messages)
        scene = Scene(number, list(body.messages), list(body.tools or ()), seed_of(body, self.config.seed))
        turn = self.next_turn(scene)
        reply = as_chat_completion(turn, number, self.config.model)
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


if __name__ == "__main__":
    ScriptedModel.run_webserver()
