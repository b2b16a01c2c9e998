"""`Opening` and `Step`: what an environment gives an episode at run time, and how the agent is informed of it.

An opening adds messages and tools to the conversation before the first turn. A step is the result of a tool call or of
a whole turn: what the model sees next, a reward, and whether the episode is over. The body of a tool's reply is what
the model sees and nothing else, so an agent that knows neither type still works; the rest travels in the header
`keys.EPISODE_HEADER`, which text from a model or a web page can never forge.
"""

import base64
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, field_validator

from nemo_gym.wire.call_reply import encode_json
from nemo_gym.wire.input_content import InputContent, InputContentPart
from nemo_gym.wire.responses import (
    NeMoGymEasyInputMessage,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseInput,
)
from nemo_gym.wire.responses_options import ToolParam
from nemo_gym.wire.run_seed_verify import BaseSeedSessionResponse

Content = str | list[Any]
"""Text, or content parts such as those of `text_part` and `image_part`."""

_PART_TYPES = frozenset({"input_text", "input_image", "input_file", "input_audio", "input_video"})
_CONTENT: TypeAdapter[Any] = TypeAdapter(InputContent, config=ConfigDict(defer_build=True))
_PARTS: TypeAdapter[Any] = TypeAdapter(list[InputContentPart], config=ConfigDict(defer_build=True))


class Opening(BaseSeedSessionResponse):
    """The beginning of an episode, returned by `seed_session` or `reset`: messages and tools for the conversation.

    Messages follow the input of the row; those of the roles `system` and `developer` precede it.
    """

    model_config = ConfigDict(defer_build=True)

    messages: NeMoGymResponseInput = []
    tools: list[ToolParam] | None = None
    """Tools for the model; None for the methods with `@tool`. A tool of the row with the same name has priority."""


class Step(BaseModel):
    """The result of a tool call, or of a turn of a gymnasium environment: `Step("You win.", reward=1.0, done=True)`."""

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    content: Any = None
    """What the model sees: text, content parts, or a value that is shown as JSON."""
    outputs: dict[str, Any] | None = None
    """In a gymnasium environment: the output of each tool call of the turn, by call id."""
    reward: float | None = None
    done: bool = False
    """The episode is over."""
    truncated: bool = False
    """The episode ends here without having come to its end. Gymnasium environments only."""
    info: dict[str, Any] = {}

    def __init__(self, content: Any = None, /, **fields: Any) -> None:
        super().__init__(content=fields.pop("content", content), **fields)

    @field_validator("reward")
    @classmethod
    def _check_reward(cls, reward: float | None) -> float | None:
        if reward is not None and not math.isfinite(reward):
            raise ValueError("the reward of a step must be a finite number")
        return reward


@dataclass(frozen=True, slots=True)
class Signals:
    """The value of the header `keys.EPISODE_HEADER`."""

    opening: bool = False
    """The body has an opening under `keys.OPENING_KEY`."""
    close: bool = False
    """The server keeps resources for the session, so an agent that does not verify posts to `keys.CLOSE_PATH`."""
    parts: bool = False
    """The body is a list of content parts instead of text."""
    reward: float | None = None
    done: bool = False

    def header_value(self) -> str:
        """Return the fields that are set, as JSON."""
        values = {name: getattr(self, name) for name in self.__slots__}
        fields = {name: value for name, value in values.items() if value is not None and value is not False}
        return orjson.dumps(fields).decode()

    @classmethod
    def parse(cls, value: str) -> "Signals":
        """Parse a header value; unknown fields are ignored.

        Raises:
            ValueError: the value is not such an object.
        """
        fields = orjson.loads(value)
        if not isinstance(fields, dict):
            raise ValueError("not a JSON object")
        reward = fields.get("reward")
        if reward is not None and (isinstance(reward, bool) or not isinstance(reward, int | float)):
            raise ValueError("the reward is not a number")
        names = ("opening", "close", "parts", "done")
        return cls(
            **{name: fields.get(name) is True for name in names}, reward=None if reward is None else float(reward)
        )


NO_SIGNALS = Signals()


def text_part(text: str) -> dict[str, Any]:
    """Return text as a content part."""
    return {"type": "input_text", "text": text}


def image_part(image: bytes | str, media_type: str = "image/png", detail: str = "auto") -> dict[str, Any]:
    """Return an image as a content part; `image` is the bytes of a file, or a URL."""
    if isinstance(image, bytes):
        image = f"data:{media_type};base64,{base64.b64encode(image).decode()}"
    return {"type": "input_image", "image_url": image, "detail": detail}


def as_content(value: Any) -> Content:
    """Return a value as the model sees it: text and content parts unchanged, None as no text, others as JSON.

    Raises:
        ValueError: a content part is invalid.
        TypeError: the value cannot be encoded as JSON.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    parts = [value] if _is_part(value) else value
    if isinstance(parts, list | tuple) and parts and all(map(_is_part, parts)):
        content: list[Any] = _PARTS.validate_python(list(parts))
        return content
    return encode_json(value).decode()


def _is_part(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("type") in _PART_TYPES


def read_content(body: bytes, signals: Signals) -> Content:
    """Return the body of a tool's reply as the model sees it.

    Raises:
        ValueError: the body should be content parts and is not.
    """
    if not signals.parts:
        return body.decode(errors="replace")
    try:
        content: Content = _CONTENT.validate_json(body)
    except ValidationError as error:
        raise ValueError(f"the content parts are invalid: {error.errors()[0]['msg']}") from None
    return content


def apply_opening(
    params: NeMoGymResponseCreateParamsNonStreaming, opening: Opening
) -> NeMoGymResponseCreateParamsNonStreaming:
    """Return the request of a row with the messages and tools of an opening."""
    prompt: list[Any] = params.input if isinstance(params.input, list) else []
    if isinstance(params.input, str) and params.input:
        prompt = [NeMoGymEasyInputMessage(type="message", role="user", content=params.input)]
    before: list[Any] = []
    after: list[Any] = []
    for message in opening.messages:
        (before if getattr(message, "role", None) in ("system", "developer") else after).append(message)
    update: dict[str, Any] = {"input": [*before, *prompt, *after]}
    if opening.tools:
        names = {tool.get("name") for tool in params.tools}
        update["tools"] = [*params.tools, *(tool for tool in opening.tools if tool.get("name") not in names)]
    return params.model_copy(update=update)


_NOT_OF_THE_TASK = frozenset({"responses_create_params", "response", "agent_ref", "seed", "reward"})


def session_seed(row: BaseModel | Mapping[str, Any]) -> int:
    """Return the seed of a row's episodes: its field `seed`, or a number below 2**32 that depends on its other fields.

    All repeats of a row have the same seed, so the rollouts of a group begin in the same state.
    """
    fields = row.model_dump() if isinstance(row, BaseModel) else dict(row)
    seed = fields.get("seed")
    if isinstance(seed, int) and not isinstance(seed, bool):
        return seed
    task = {
        name: value for name, value in fields.items() if name not in _NOT_OF_THE_TASK and not name.startswith("_ng_")
    }
    text = orjson.dumps(task, default=str, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    return int.from_bytes(hashlib.sha256(text).digest()[:4])
