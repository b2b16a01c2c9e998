"""Token counts of a response, and their sums. A detail that one side does not know stays unknown."""

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
        """The sum of all given usages, skipping None; of none at all, zero."""
        known = [usage for usage in usages if usage is not None]
        cached, reasoning = _sum(map(_cached, known)), _sum(map(_reasoning, known))
        return cls.model_validate(
            {
                "input_tokens": sum([usage.input_tokens for usage in known]),
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": sum([usage.output_tokens for usage in known]),
                "output_tokens_details": {"reasoning_tokens": reasoning},
                "total_tokens": sum([usage.total_tokens for usage in known]),
            }
        )


def accumulate_response_usage(
    total: NeMoGymResponseUsage | None, additional: NeMoGymResponseUsage | None
) -> NeMoGymResponseUsage | None:
    """The sum of two usages, either of which may be missing. Neither argument is changed."""
    if total is None and additional is None:
        return None
    return NeMoGymResponseUsage.sum_from_list([total, additional])


def _cached(usage: NeMoGymResponseUsage) -> int | None:
    return usage.input_tokens_details.cached_tokens if usage.input_tokens_details else None


def _reasoning(usage: NeMoGymResponseUsage) -> int | None:
    return usage.output_tokens_details.reasoning_tokens if usage.output_tokens_details else None


def _sum(counts: Iterable[int | None]) -> int | None:
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total
