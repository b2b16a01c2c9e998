"""The results of grading: an extracted answer with its position, the reason why there is no answer, and a verdict."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeAlias, TypeVar

ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class ExtractedAnswer(Generic[ValueT]):
    """An answer extracted from a text, its position and the name of the rule that extracted it."""

    value: ValueT
    span: tuple[int, int]
    """Start and end in the text that was searched."""
    rule: str


@dataclass(frozen=True)
class NoAnswer:
    """The reason why a text contains no answer; differs from a wrong answer."""

    reason: str


Extraction: TypeAlias = ExtractedAnswer[ValueT] | NoAnswer


class VerdictKind(StrEnum):
    """The result of comparing one answer with the expected one."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNPARSED = "unparsed"
    """The reply contains no answer that can be parsed."""
    UNDECIDED = "undecided"
    """The answer was parsed, but the comparison exceeded a limit (time, memory) or is not possible."""


@dataclass(frozen=True)
class Verdict:
    """The result of grading one answer, with the reason."""

    outcome: VerdictKind
    answer: str | None = None
    """The extracted answer, for display."""
    rule: str | None = None
    """The name of the rule that extracted or compared the answer."""
    reason: str | None = None
    """Why the answer is not correct."""

    @property
    def correct(self) -> bool:
        return self.outcome is VerdictKind.CORRECT

    @property
    def reward(self) -> float:
        """Return 1.0 for a correct answer, else 0.0."""
        return float(self.correct)


def no_answer_verdict(missing: NoAnswer) -> Verdict:
    """Return the verdict `unparsed` with the reason why there is no answer."""
    return Verdict(VerdictKind.UNPARSED, reason=missing.reason)
