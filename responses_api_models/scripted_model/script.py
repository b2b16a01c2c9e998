"""The parts of a script: turns, tool calls and faults, and the scene that a script written as a function receives."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from nemo_gym.wire.call_reply import replace_surrogates


class ScriptPart(BaseModel):
    """A part of a script, in which unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


ModelText = Annotated[str, AfterValidator(replace_surrogates)]
"""Text of a model: half a character becomes U+FFFD, as in the answers of endpoints."""


class ScriptedCall(ScriptPart):
    name: ModelText
    arguments: dict[str, Any] | ModelText = {}
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

    text: ModelText | None = None
    reasoning: ModelText | None = None
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
