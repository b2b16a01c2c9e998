"""Mathematical answers verified: found in the text, compared here when they are numbers and in a worker when not."""

import importlib.util
from collections import OrderedDict
from typing import Any, Self

from nemo_gym.errors import EnvFailed
from nemo_gym.grading.last_text import without_reasoning
from nemo_gym.grading.math import LONGEST_QUESTION, NeedsSymbols, Rules, compare_math, math_answer, needs_symbols
from nemo_gym.grading.verdict import Extracted, Outcome, Unparsed, Verdict, unparsed
from nemo_gym.workers.jobs import Lost, Result
from nemo_gym.workers.pool import WorkerPool

WORK = "nemo_gym.workers.symbolic:compare"
REMEMBERED = 4096
"""Verdicts kept: repeats of one task give the same answers again and again."""


class MathVerifier:
    """Grades mathematical answers: same verdict from a thread, an event loop, a process or a crowd of callers.

    Most answers are numbers and never leave this process. Expressions go to worker processes that import math-verify
    (`pip install 'nemo-gym[math]'`); one that takes too long, or too much memory, is `undecided`.
    """

    def __init__(
        self,
        *,
        rules: Rules | None = None,
        size: int | None = None,
        cpu_seconds: float = 3.0,
        wall_seconds: float = 60.0,
        memory_bytes: int = 1 << 30,
    ) -> None:
        self.rules = rules or Rules()
        self.pool = WorkerPool(
            WORK, size=size, cpu_seconds=cpu_seconds, wall_seconds=wall_seconds, memory_bytes=memory_bytes
        )
        self._known: OrderedDict[tuple[str, str, str | None], Verdict] = OrderedDict()

    def verify(self, text: str, gold: str, *, question: str | None = None) -> Verdict:
        """Find the final answer in what the model said and compare it with `gold`."""
        found = self.extract(text)
        return self.compare(found.value, gold, question=question) if isinstance(found, Extracted) else unparsed(found)

    async def verify_async(self, text: str, gold: str, *, question: str | None = None) -> Verdict:
        """`verify` without holding up the event loop."""
        found = self.extract(text)
        if isinstance(found, Unparsed):
            return unparsed(found)
        return await self.compare_async(found.value, gold, question=question)

    def extract(self, text: str) -> Extracted[str] | Unparsed:
        """The final answer after the reasoning; its span is in `text`."""
        said = without_reasoning(text)
        if isinstance(said, Unparsed):
            return said
        found = math_answer(said.value)
        if isinstance(found, Unparsed):
            return found
        start, end = found.span
        return Extracted(found.value, (said.span[0] + start, said.span[0] + end), found.rule)

    def compare(self, answer: str, gold: str, *, question: str | None = None) -> Verdict:
        """Whether `answer`, already extracted, says the same as `gold`."""
        decided = self._decided(answer, gold, question)
        return decided or self._kept(answer, gold, question, self.pool.run(self._job(answer, gold, question)))

    async def compare_async(self, answer: str, gold: str, *, question: str | None = None) -> Verdict:
        """`compare` without holding up the event loop."""
        decided = self._decided(answer, gold, question)
        if decided is not None:
            return decided
        return self._kept(answer, gold, question, await self.pool.run_async(self._job(answer, gold, question)))

    def close(self) -> None:
        """End the worker processes."""
        self.pool.close()

    def _decided(self, answer: str, gold: str, question: str | None) -> Verdict | None:
        try:
            return compare_math(answer, gold, symbolic=needs_symbols, rules=self.rules, question=question)
        except NeedsSymbols:
            return self._known.get((answer, gold, question))

    def _job(self, answer: str, gold: str, question: str | None) -> dict[str, Any]:
        if importlib.util.find_spec("math_verify") is None:
            raise EnvFailed("math-verify is not installed", fix="pip install 'nemo-gym[math]'")
        shown = None if question is None else question[:LONGEST_QUESTION]
        return {"answer": answer, "gold": gold, "question": shown, "worked_out": self.rules.worked_out}

    def _kept(self, answer: str, gold: str, question: str | None, result: Result) -> Verdict:
        if isinstance(result, Lost):
            return Verdict(Outcome.UNDECIDED, answer, "symbolic", f"{result.kind}: {result.reason}")
        said = result.value
        verdict = Verdict(Outcome(said["outcome"]), answer, said["rule"], said["reason"])
        self._known[(answer, gold, question)] = verdict
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return verdict

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
