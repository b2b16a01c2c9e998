"""Episodes and tasks with an identity, and how an episode ends: with a result or with a failure."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from nemo_gym.failure_kinds import MAX_REASON_CHARACTERS, FailureStage, validate_failure_kind
from nemo_gym.keys import TASK_ID_KEY_NAME

_TASK_DATA = "task_data"
TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_ATTEMPT_SUFFIX = re.compile(r"-a[1-9][0-9]*$")
NonEmptyText = Annotated[str, Field(min_length=1)]


class EpisodeModel(BaseModel):
    """Base class of the bodies of episodes and sessions: an unknown field is a mistake."""

    model_config = ConfigDict(extra="forbid")


class EpisodeId(EpisodeModel):
    """The identity of one episode: the rollout, and which attempt of it."""

    model_config = ConfigDict(frozen=True)

    rollout_id: str = Field(pattern=NAME_PATTERN)
    attempt: int = Field(default=0, ge=0)

    @field_validator("rollout_id")
    @classmethod
    def _check_suffix(cls, rollout_id: str) -> str:
        if _ATTEMPT_SUFFIX.search(rollout_id):
            raise ValueError("a rollout id does not end like an attempt (-a1); use the field attempt")
        return rollout_id

    @property
    def capture_key(self) -> str:
        """The rollout id under which the model calls of this attempt are captured."""
        return f"{self.rollout_id}-a{self.attempt}" if self.attempt else self.rollout_id


class TaskId(EpisodeModel):
    """The identity of a task: its set, and its id in this set."""

    model_config = ConfigDict(frozen=True)

    taskset: NonEmptyText
    task_id: NonEmptyText


def is_materialized_task_row(row: Any) -> bool:
    """Return whether a row has the form of a task with an identity; its input may still be invalid."""
    return isinstance(row, Mapping) and isinstance(row.get("task_id"), Mapping) and "task_input" in row


def flatten_task(row: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the task set of a materialized row, and the row as one level of fields for `/run` of an agent.

    `_ng_task_id` of the flat row keeps the identity. The fields of `task_input.task_data` and those beside it become
    fields of the row.

    Raises:
        ValueError: the identity or the input is invalid, or a field occurs with two values.
    """
    identity, task_input = row["task_id"], row["task_input"]
    texts = [identity.get(name) for name in ("taskset", "task_id")]
    if set(identity) != {"taskset", "task_id"} or not all(isinstance(text, str) and text for text in texts):
        raise ValueError("task_id: not an object with the texts 'taskset' and 'task_id'")
    if not isinstance(task_input, Mapping):
        raise ValueError("task_input: not an object")
    fields = {name: value for name, value in task_input.items() if name != _TASK_DATA}
    nested = task_input.get(_TASK_DATA, {})
    if not isinstance(nested, Mapping):
        raise ValueError(f"task_input.{_TASK_DATA}: not an object")
    outside = {name: value for name, value in row.items() if name not in ("task_id", "task_input")}
    flat: dict[str, Any] = {}
    for part in (nested, fields, outside):
        for name, value in part.items():
            if flat.setdefault(name, value) != value:
                raise ValueError(f"task_input: the field {name!r} occurs with two values")
    return identity["taskset"], flat | {TASK_ID_KEY_NAME: dict(identity)}


class EpisodeFailure(EpisodeModel):
    """Why an episode has no result. A terminal failure is not retried."""

    failure_reason: str = Field(max_length=MAX_REASON_CHARACTERS)
    terminal: bool
    failure_kind: str | None = Field(default=None, exclude_if=lambda kind: kind is None)
    stage: FailureStage | None = Field(default=None, exclude_if=lambda stage: stage is None)

    @field_validator("failure_kind")
    @classmethod
    def _check_kind(cls, kind: str | None) -> str | None:
        return None if kind is None else validate_failure_kind(kind)


class MaterializedTask(EpisodeModel, Generic[TaskT]):
    task_id: TaskId
    task_input: TaskT


class BaseEpisodeRequest(EpisodeModel, Generic[TaskT]):
    """The body of `/run` at an environment server."""

    episode_id: EpisodeId
    task: MaterializedTask[TaskT]


class BaseEpisodeResponse(EpisodeModel, Generic[ResultT]):
    """The answer of an environment server: a result, or a failure."""

    episode_id: EpisodeId
    task_id: TaskId
    result: ResultT | None = None
    failure: EpisodeFailure | None = None

    @model_validator(mode="after")
    def _check_outcome(self) -> Self:
        if (self.result is None) == (self.failure is None):
            raise ValueError("an episode has exactly one of result and failure")
        return self
