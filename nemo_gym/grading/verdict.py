"""The results of grading: an extracted answer with its position, the reason why there is no answer, and a verdict."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeAlias, TypeVar

ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class ExtractedAnswer(Generic[ValueT]):
    """An answer found in a text, its position and the rule that found it."""

    value: ValueT
    span: tuple[int, int]
    """Start and end in the text that was searched."""
    rule: str


@dataclass(frozen=True)
class NoAnswer:
    """The reason why a text contains no answer. Not the same as a wrong answer."""

    reason: str


Extraction: TypeAlias = ExtractedAnswer[ValueT] | NoAnswer


class VerdictKind(StrEnum):
    """The result of comparing one answer with the expected one."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNPARSED = "unparsed"
    """The reply contains no answer that can be read."""
    UNDECIDED = "undecided"
    """The answer was read, but comparing it hit a limit (time, memory) or is not possible."""


@dataclass(frozen=True)
class Verdict:
    """The result of grading one answer, with the reason."""

    outcome: VerdictKind
    answer: str | None = None
    """The answer as it was read, for people."""
    rule: str | None = None
    """The rule that found or compared it."""
    reason: str | None = None
    """Why the answer is not correct."""

    @property
    def correct(self) -> bool:
        return self.outcome is VerdictKind.CORRECT

    @property
    def reward(self) -> float:
        """1 for a correct answer, else 0."""
        return float(self.correct)


def no_answer_verdict(missing: NoAnswer) -> Verdict:
    """Return the verdict on a text without an answer."""
    return Verdict(VerdictKind.UNPARSED, reason=missing.reason)
