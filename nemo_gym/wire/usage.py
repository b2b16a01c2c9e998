"""Token counts of a response, and their sums. A detail that one summand does not report stays unknown."""

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
        """Return the sum of the usages, ignoring None; zero for an empty list."""
        reported = [usage for usage in usages if usage is not None]
        inputs = [usage.input_tokens_details for usage in reported]
        outputs = [usage.output_tokens_details for usage in reported]
        cached = _sum(details.cached_tokens if details else None for details in inputs)
        reasoning = _sum(details.reasoning_tokens if details else None for details in outputs)
        return cls.model_validate(
            {
                "input_tokens": sum([usage.input_tokens for usage in reported]),
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": sum([usage.output_tokens for usage in reported]),
                "output_tokens_details": {"reasoning_tokens": reasoning},
                "total_tokens": sum([usage.total_tokens for usage in reported]),
            }
        )


def accumulate_response_usage(
    total: NeMoGymResponseUsage | None, additional: NeMoGymResponseUsage | None
) -> NeMoGymResponseUsage | None:
    """Return the sum of two usages, either of which may be None."""
    if total is None and additional is None:
        return None
    return NeMoGymResponseUsage.sum_from_list([total, additional])


def _sum(counts: Iterable[int | None]) -> int | None:
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total
