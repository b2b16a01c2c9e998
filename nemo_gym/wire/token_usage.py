"""Token counts of responses, and their sums."""

from collections.abc import Iterable
from typing import Self

from pydantic import Field

from nemo_gym.wire.base import WireModel


class NeMoGymResponseInputTokensDetails(WireModel):
    cached_tokens: int | None = None


class NeMoGymResponseOutputTokensDetails(WireModel):
    reasoning_tokens: int | None = None


class NeMoGymResponseUsage(WireModel):
    input_tokens: int
    input_tokens_details: NeMoGymResponseInputTokensDetails | None = Field(
        default_factory=NeMoGymResponseInputTokensDetails
    )
    output_tokens: int
    output_tokens_details: NeMoGymResponseOutputTokensDetails | None = Field(
        default_factory=NeMoGymResponseOutputTokensDetails
    )
    total_tokens: int

    @classmethod
    def sum_from_list(cls, usages: Iterable[Self | None]) -> Self:
        """Return the sum of the usages, ignoring None; zero without any usage.

        A detail (cached or reasoning tokens) that one usage does not report is None in the sum.
        """
        input_tokens = output_tokens = total_tokens = 0
        cached: int | None = 0
        reasoning: int | None = 0
        for usage in usages:
            if usage is not None:
                input_tokens += usage.input_tokens
                output_tokens += usage.output_tokens
                total_tokens += usage.total_tokens
                inputs, outputs = usage.input_tokens_details, usage.output_tokens_details
                cached = _add_known(cached, inputs.cached_tokens if inputs else None)
                reasoning = _add_known(reasoning, outputs.reasoning_tokens if outputs else None)
        return cls.model_validate(
            {
                "input_tokens": input_tokens,
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": output_tokens,
                "output_tokens_details": {"reasoning_tokens": reasoning},
                "total_tokens": total_tokens,
            }
        )


def accumulate_response_usage(
    total: NeMoGymResponseUsage | None, additional: NeMoGymResponseUsage | None
) -> NeMoGymResponseUsage | None:
    """Return the sum of two usages, either of which may be None."""
    if total is None and additional is None:
        return None
    return NeMoGymResponseUsage.sum_from_list([total, additional])


def _add_known(total: int | None, count: int | None) -> int | None:
    """Return the sum of two counts, or None if one of them is unknown."""
    return None if total is None or count is None else total + count
