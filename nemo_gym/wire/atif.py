"""Trajectories in the Agent Trajectory Interchange Format (ATIF), version 1.7, which Harbor and other tools read."""

import json
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from nemo_gym.errors import GymError

ATIF_VERSION: Literal["ATIF-v1.7"] = "ATIF-v1.7"
_AGENT_FIELDS = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")


class AtifError(GymError, ValueError):
    """A file is no trajectory that can be read."""


def _check_timestamp(text: str) -> str:
    datetime.fromisoformat(text)
    return text


class AtifModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class AtifImageSource(AtifModel):
    media_type: str
    path: str


class AtifContentPart(AtifModel):
    type: Literal["text", "image"]
    text: str | None = None
    source: AtifImageSource | None = None


class AtifToolCall(AtifModel):
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]
    extra: dict[str, Any] | None = None


class AtifMetrics(AtifModel):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    extra: dict[str, Any] | None = None


class AtifSubagentRef(AtifModel):
    trajectory_id: str | None = None
    session_id: str | None = None
    trajectory_path: str | None = None
    extra: dict[str, Any] | None = None


class AtifResult(AtifModel):
    source_call_id: str | None = None
    content: str | list[AtifContentPart] | None = None
    subagent_trajectory_ref: list[AtifSubagentRef] | None = None
    extra: dict[str, Any] | None = None


class AtifObservation(AtifModel):
    results: list[AtifResult]


class AtifStep(AtifModel):
    step_id: int = Field(ge=1)
    source: Literal["system", "user", "agent"]
    message: str | list[AtifContentPart]
    timestamp: Annotated[str, AfterValidator(_check_timestamp)] | None = None
    model_name: str | None = None
    reasoning_effort: str | float | None = None
    reasoning_content: str | None = None
    tool_calls: list[AtifToolCall] | None = None
    observation: AtifObservation | None = None
    metrics: AtifMetrics | None = None
    llm_call_count: int | None = Field(default=None, ge=0)
    is_copied_context: bool | None = None
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if self.source != "agent":
            names = [name for name in _AGENT_FIELDS if getattr(self, name) is not None]
            if names:
                raise ValueError(f"step {self.step_id}: {', '.join(names)} in a step of the {self.source}")
        if self.llm_call_count == 0 and (self.reasoning_content is not None or self.metrics is not None):
            raise ValueError(f"step {self.step_id}: reasoning or metrics without a model call")
        calls = {call.tool_call_id for call in self.tool_calls or ()}
        results = self.observation.results if self.observation else []
        unknown = [each.source_call_id for each in results if each.source_call_id and each.source_call_id not in calls]
        if unknown:
            raise ValueError(f"step {self.step_id}: the result of {unknown[0]} has no call in this step")
        return self


class AtifAgent(AtifModel):
    name: str
    version: str
    model_name: str | None = None
    tool_definitions: list[dict[str, Any]] | None = None
    extra: dict[str, Any] | None = None


class AtifFinalMetrics(AtifModel):
    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None
    total_cached_tokens: int | None = None
    total_cost_usd: float | None = None
    total_steps: int | None = None
    extra: dict[str, Any] | None = None


class AtifTrajectory(AtifModel):
    schema_version: Literal["ATIF-v1.7"] = ATIF_VERSION
    session_id: str | None = None
    trajectory_id: str | None = None
    agent: AtifAgent
    steps: list[AtifStep] = Field(min_length=1)
    notes: str | None = None
    final_metrics: AtifFinalMetrics | None = None
    continued_trajectory_ref: str | None = None
    subagent_trajectories: list["AtifTrajectory"] | None = None
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_steps(self) -> Self:
        numbers = [step.step_id for step in self.steps]
        if numbers != list(range(1, len(numbers) + 1)):
            raise ValueError("step_id does not count from 1")
        total = self.final_metrics.total_steps if self.final_metrics else None
        if total is not None and total != len(self.steps):
            raise ValueError(f"total_steps is {total}, but there are {len(self.steps)} steps")
        return self


def parse_strict_json(content: bytes) -> Any:
    """Parse JSON; keys that occur twice, and numbers that JSON does not have or a float cannot hold, are errors.

    Raises:
        AtifError: it is invalid.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Return the pairs of an object as a dictionary."""
        fields = dict(pairs)
        if len(fields) != len(pairs):
            raise AtifError("a key occurs twice in an object")
        return fields

    def refuse(text: str) -> Any:
        """Raise an error for NaN and infinity."""
        raise AtifError(f"{text} is no JSON number")

    def finite(text: str) -> float:
        """Return a number, which must not be rounded to infinity or zero."""
        number = float(text)
        digits = text.lower().partition("e")[0]
        if number in (float("inf"), float("-inf")) or (number == 0 and digits.strip("-0.")):
            raise AtifError(f"{text} is out of range")
        return number

    try:
        return json.loads(content, object_pairs_hook=unique, parse_constant=refuse, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, AtifError) else AtifError(f"invalid JSON: {error}") from None
