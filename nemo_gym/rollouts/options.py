"""What bounds a collection: limits of one rollout and of all together, and what becomes of failures.

All of them are keys of the configuration (`+rollout_timeout_seconds=600`); null switches a limit off.
"""

from typing import Annotated

from pydantic import BaseModel, Field

from nemo_gym.net.allowance import Allowance

Seconds = Annotated[float, Field(gt=0)]
AtLeastOne = Annotated[int, Field(ge=1)]


class LimitOptions(BaseModel):
    """How long a rollout and its calls may take, and how much it may use. On by default, with generous values."""

    rollout_timeout_seconds: Seconds | None = Field(
        default=7200.0, description="Wall time of one rollout, from being sent to being answered; null: no limit."
    )
    model_call_timeout_seconds: Seconds | None = Field(
        default=3600.0, description="Time of one call of an agent or environment to a model; null: no limit of its own."
    )
    tool_call_timeout_seconds: Seconds | None = Field(
        default=1800.0, description="Time of one tool call, or of seeding a session; null: no limit of its own."
    )
    verify_timeout_seconds: Seconds | None = Field(
        default=1800.0, description="Time of verifying one rollout; null: no limit of its own."
    )
    max_steps_per_rollout: AtLeastOne | None = Field(
        default=1000,
        description="Model turns of one rollout, for agents that count them (simple_agent does); null: no limit.",
    )
    max_tokens_per_rollout: AtLeastOne | None = Field(
        default=50_000_000, description="Tokens of all model calls of one rollout, in and out; null: no limit."
    )
    max_total_tokens: AtLeastOne | None = Field(
        default=10_000_000_000,
        description="Tokens of the whole run, resumed parts included. When they are spent no rollout is started, "
        "those in flight finish; null: no limit.",
    )

    @property
    def allowance(self) -> Allowance:
        """What each rollout is sent with."""
        return Allowance(
            model_call_seconds=self.model_call_timeout_seconds,
            tool_call_seconds=self.tool_call_timeout_seconds,
            verify_seconds=self.verify_timeout_seconds,
            steps=self.max_steps_per_rollout,
            tokens=self.max_tokens_per_rollout,
        )


class FailureOptions(BaseModel):
    """How often a failed rollout is tried again, and when failures end the run."""

    max_rollout_attempts: AtLeastOne | None = Field(
        default=None,
        description="How often a rollout is tried before it is given up, resumed runs included; "
        "NEMO_GYM_MAX_ROLLOUT_ATTEMPTS or 3 when not given.",
    )
    retry_pause_seconds: Annotated[float, Field(ge=0)] = Field(
        default=2.0, description="Pause before a rollout is tried again, doubled each time, with jitter."
    )
    max_failures: AtLeastOne | None = Field(
        default=None, description="Stop when so many rollouts have failed; those in flight can be resumed."
    )
    fail_fast: bool = Field(default=False, description="Stop at the first rollout that failed for good (-x).")
