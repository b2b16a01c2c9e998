"""Totals over rollouts: tokens, answers that were cut off, refused or not extracted, and tools that raised."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from nemo_gym.wire.stored_rollout import StoredRollout

TOKENS = "tokens"
ANSWERS = "answers"
TOOL_ERRORS = "tool_errors"
TRUNCATED, REFUSED, NOT_EXTRACTED = "truncated", "refused", "not_extracted"
_TEXTS = {TRUNCATED: "cut off", REFUSED: "refused", NOT_EXTRACTED: "no answer extracted"}
EXTRACTED_NAMES = ("extracted_answer", "extracted", "model_answer", "predicted_answer", "prediction", "parsed_answer")
"""Fields in which verifiers store the answer that they extracted; the first one of a record counts."""


def describe_answers(entry: Mapping[str, Any]) -> str:
    """Return the problems of the answers in a metrics entry, as `cut off 3 (5.0 %) · refused 1 (1.7 %)`."""
    answers = entry.get(ANSWERS)
    return " · ".join(
        f"{_TEXTS.get(problem, problem)} {facts['count']} ({100 * facts['share']:.1f} %)"
        for problem, facts in (answers.items() if isinstance(answers, Mapping) else ())
        if facts["count"]
    )


class AnswerTotals:
    """Sums of tokens over all attempts, and counts of problematic answers over the scored rollouts of an agent."""

    def __init__(self) -> None:
        self._tokens: Counter[tuple[str, str]] = Counter()
        self._problems: Counter[str] = Counter()
        self._tool_errors: Counter[tuple[str, str, str]] = Counter()
        self._scored = self._with_extraction = 0

    def add_scored(self, record: Mapping[str, Any]) -> None:
        """Add the tokens and the answer of a scored rollout."""
        stored = StoredRollout(record)
        self.add_tokens(stored)
        self._scored += 1
        self._problems[TRUNCATED] += stored.is_truncated
        self._problems[REFUSED] += stored.is_refused
        for error in stored.tool_errors:
            self._tool_errors[str(error.get("tool")), str(error.get("error")), str(error.get("at"))] += 1
        name = next((name for name in EXTRACTED_NAMES if name in record), None)
        if name is not None:
            self._with_extraction += 1
            self._problems[NOT_EXTRACTED] += record[name] in (None, "")

    def add_tokens(self, stored: StoredRollout) -> None:
        """Add the tokens of an attempt, scored or not."""
        for kind, count in stored.tokens_by_kind().items():
            self._tokens[stored.model, kind] += count

    def fields(self) -> dict[str, Any]:
        """Return the tokens by model and kind, and the number of each problem with its share of the rollouts."""
        tokens: dict[str, dict[str, int]] = {}
        for (model, kind), count in self._tokens.items():
            tokens.setdefault(model, {})[kind] = count
        answers = {
            problem: {"count": self._problems[problem], "share": self._problems[problem] / total}
            for problem, total in (
                (TRUNCATED, self._scored),
                (REFUSED, self._scored),
                (NOT_EXTRACTED, self._with_extraction),
            )
            if total
        }
        errors = [
            {"tool": tool, "error": error, "at": at, "count": count}
            for (tool, error, at), count in self._tool_errors.most_common()
        ]
        return {TOKENS: tokens, ANSWERS: answers, **({TOOL_ERRORS: errors} if errors else {})}
