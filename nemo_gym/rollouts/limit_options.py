"""Options of a collection: limits of time and usage, attempts and failures that end it, rollouts in flight."""

from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from nemo_gym.rollouts.collect import DEFAULT_CONCURRENCY
from nemo_gym.transport import deadlines
from nemo_gym.transport.deadlines import Allowance

Seconds = Annotated[float, Field(gt=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
_AT_LEAST_ONE: TypeAdapter[int] = TypeAdapter(AtLeastOne)


def check_repeats(value: Any) -> Any:
    """Check `num_repeats` and return it, or 1 for null.

    Raises:
        ValueError: it is neither a number nor a mapping; in one sentence, where pydantic reports each half of a union.
    """
    if value is None:
        return 1
    try:
        for count in value.values() if isinstance(value, dict) else (value,):
            _AT_LEAST_ONE.validate_python(count)
    except ValidationError:
        problem = f"{value!r} is neither a number from 1 nor a number from 1 for each agent, such as {{math: 8}}"
        raise ValueError(problem) from None
    return value


class LimitOptions(BaseModel):
    """Time and usage limits of a rollout and its calls. On by default, with generous values."""

    rollout_timeout_seconds: Seconds | None = Field(
        default=7200.0, description="Rollout deadline: wall time of one rollout from send to answer; null: no limit."
    )
    model_call_timeout_seconds: Seconds | None = Field(
        default=3600.0, description="Time of one call of an agent or environment to a model; null: no separate limit."
    )
    tool_call_timeout_seconds: Seconds | None = Field(
        default=1800.0, description="Time of one tool call, or of seeding a session; null: no separate limit."
    )
    verify_timeout_seconds: Seconds | None = Field(
        default=1800.0, description="Time of verifying one rollout; null: no separate limit."
    )
    request_timeout_seconds: Seconds | None = Field(
        default=None, description="Time of any call of a rollout; null: only the limits above."
    )
    max_steps_per_rollout: AtLeastOne | None = Field(
        default=1000,
        description="Model turns of one rollout, counted by agents (simple_agent does) and, for external programs, by "
        "the model server; null: no limit.",
    )
    max_tokens_per_rollout: AtLeastOne | None = Field(
        default=50_000_000, description="Tokens of all model calls of one rollout, in and out; null: no limit."
    )
    max_total_tokens: AtLeastOne | None = Field(
        default=10_000_000_000,
        description="Tokens of the whole run, resumed parts included. When they are used up, no rollout is started "
        "and those in flight finish; null: no limit.",
    )
    max_total_cost: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="Cost of the whole run in US dollars, resumed parts included, from the price table `prices`. When "
        "it is reached, no rollout is started and those in flight finish; null: no limit.",
    )

    @property
    def allowance(self) -> Allowance:
        """The limits that are sent with each rollout."""
        most = self.request_timeout_seconds
        return Allowance(
            model_call_seconds=deadlines.shorter_of(self.model_call_timeout_seconds, most),
            tool_call_seconds=deadlines.shorter_of(self.tool_call_timeout_seconds, most),
            verify_seconds=deadlines.shorter_of(self.verify_timeout_seconds, most),
            request_seconds=most,
            steps=self.max_steps_per_rollout,
            tokens=self.max_tokens_per_rollout,
        )


class FailureOptions(BaseModel):
    """Retries of failed rollouts, and the failures that end the run."""

    max_rollout_attempts: AtLeastOne | None = Field(
        default=None,
        description="Maximum attempts per rollout, resumed runs included; default: NEMO_GYM_MAX_ROLLOUT_ATTEMPTS or 3.",
    )
    retry_pause_seconds: Annotated[float, Field(ge=0)] = Field(
        default=2.0, description="Pause before a rollout is retried, doubled each time, with jitter."
    )
    max_failures: AtLeastOne | None = Field(
        default=None, description="Stop after this number of failed rollouts; those in flight can be resumed."
    )
    fail_fast: bool = Field(default=False, description="Stop at the first rollout that failed for good (-x).")
    require_complete: bool = Field(
        default=False, description="At the end, fail unless every rollout of the run is scored."
    )


class VolumeOptions(BaseModel):
    """How many rollouts are in flight, and what is kept of them in memory."""

    num_samples_in_parallel: AtLeastOne | None = Field(
        default=None, description=f"Number of rollouts in flight; default: {DEFAULT_CONCURRENCY}."
    )
    max_resident_rollout_tasks: AtLeastOne | None = Field(
        default=None, description="Also limits the rollouts in flight; the smaller number counts."
    )
    retain_results_in_memory: bool = Field(
        default=True, description="Return the results of Python calls; false: they are only on disk."
    )

    @property
    def concurrency(self) -> int:
        """The maximum number of rollouts in flight."""
        limit = self.num_samples_in_parallel or DEFAULT_CONCURRENCY
        return min(limit, self.max_resident_rollout_tasks or limit)
