"""What grading returns: an answer with its place and rule, or why there is none; and a verdict that tells which."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeAlias, TypeVar

ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class Extracted(Generic[ValueT]):
    """An answer found in a text, where it stands and which rule found it."""

    value: ValueT
    span: tuple[int, int]
    """Start and end in the text the extractor was given."""
    rule: str


@dataclass(frozen=True)
class Unparsed:
    """There is no answer in the text, and this is why. Not the same as a wrong answer."""

    reason: str


Extraction: TypeAlias = Extracted[ValueT] | Unparsed


class Outcome(StrEnum):
    """How grading one answer ended."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNPARSED = "unparsed"
    """No answer could be read."""
    UNDECIDED = "undecided"
    """An answer was read, but comparing it hit a limit (time, memory) or is not possible."""


@dataclass(frozen=True)
class Verdict:
    """What grading says about one answer."""

    outcome: Outcome
    answer: str | None = None
    """The answer as it was read, for people."""
    rule: str | None = None
    """The rule that found or compared it."""
    reason: str | None = None
    """Why the answer is not correct, in plain words."""

    @property
    def correct(self) -> bool:
        return self.outcome is Outcome.CORRECT

    @property
    def reward(self) -> float:
        """1 for a correct answer, else 0."""
        return float(self.correct)


def unparsed(why: Unparsed) -> Verdict:
    """The verdict on a text without an answer."""
    return Verdict(Outcome.UNPARSED, reason=why.reason)
