"""Scripted model: plays a written list of answers or a function, offline and always the same, and fails when told to.

Which answer comes next depends on the request alone: the number of turns a model has already taken in its input, and
the seed where there is a choice. So any number of conversations can run at once, in any number of processes.
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
from nemo_gym.net import deadline
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from responses_api_models.scripted_model.script import (
    Fault,
    Play,
    Scene,
    Turn,
    as_chat_completion,
    as_response,
    as_turn,
    loaded_function,
    seed_of,
    turns_in_items,
    turns_in_messages,
)

Answer = NeMoGymResponse | NeMoGymChatCompletion


class ScriptedModelConfig(BaseResponsesAPIModelConfig):
    script: Annotated[list[Turn | Annotated[list[Turn], Field(min_length=1)]], Field(min_length=1)] | None = None
    """What the model says on its first turn, its second turn, and so on; a list in place of a turn is a choice."""
    function: str | None = None
    """Instead of a script: `package.module:name` of a function from a `Scene` to a turn."""
    after_last: Literal["repeat", "cycle", "fail"] = "repeat"
    """When a conversation goes on after the script: the last turn again, from the top, or a 400."""
    seed: int = 0
    """Decides choices in the script when the request names no seed."""
    model: str = "scripted"
    """Name reported in every answer."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
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
            self._function = loaded_function(self.config.function, self.config.name)

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        items = [] if isinstance(body.input, str) else body.model_dump(exclude_unset=True)["input"]
        number = turns_in_items(items)
        conversation = items or [{"role": "user", "content": body.input}]
        turn = self.turn(number, Scene(number, conversation, list(body.tools or ()), seed_of(body, self.config.seed)))
        answer = as_response(turn, number, body, self.config.model)
        return await self._perform(turn, number, answer)  # type: ignore[return-value]

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        number = turns_in_messages(body.messages)
        scene = Scene(number, list(body.messages), list(body.tools or ()), seed_of(body, self.config.seed))
        turn = self.turn(number, scene)
        answer = as_chat_completion(turn, number, self.config.model)
        return await self._perform(turn, number, answer)  # type: ignore[return-value]

    def turn(self, number: int, scene: Scene) -> Turn:
        """What to say when the model has spoken `number` times before."""
        if self._function is not None:
            return as_turn(self._function(scene))
        script = self.config.script or []
        if number >= len(script) and self.config.after_last == "fail":
            raise HTTPException(400, f"the script has {len(script)} turns and turn {number + 1} was asked for")
        index = min(number, len(script) - 1) if self.config.after_last == "repeat" else number % len(script)
        entry = script[index]
        return entry if isinstance(entry, Turn) else scene.chance.choice(entry)

    async def _perform(self, turn: Turn, number: int, answer: Answer) -> Answer | Response:
        """Wait, fail or answer as the turn says."""
        await asyncio.sleep(turn.delay_seconds)
        fault = turn.fault
        if fault is None or (fault.times is not None and self._faults[number] >= fault.times):
            return answer
        self._faults[number] += 1
        return await spoiled(fault, answer, self.config.name)


async def spoiled(fault: Fault, answer: Answer, where: str) -> Answer | Response:
    """The answer with its fault."""
    if fault.kind == "status":
        raise HTTPException(fault.status, fault.message, headers=fault.headers)
    if fault.kind == "stall":
        await stall(fault.seconds, where)
        return answer
    whole = answer.model_dump_json().encode()
    if fault.kind == "half_body":
        return Response(whole[: len(whole) // 2], headers={"Content-Length": str(len(whole))})
    content = {
        "not_json": fault.message.encode(),
        "cut_off": whole[: len(whole) // 2],
        "missing_fields": answer.model_dump_json(exclude=set(fault.fields)).encode(),
        "wrong_shape": orjson.dumps({"unexpected": fault.message}),
    }[fault.kind]
    return Response(content, media_type="application/json")


async def stall(seconds: float, where: str) -> None:
    """Wait `seconds`, but no longer than the caller does.

    Raises:
        DeadlineExceeded: the caller's time ended first.
    """
    left = deadline.sooner(seconds, deadline.remaining()) or 0.0
    await asyncio.sleep(left)
    if left < seconds:
        raise DeadlineExceeded(f"the script stalls for {seconds:g} s", where=where)


if __name__ == "__main__":
    ScriptedModel.run_webserver()
