"""Verify mathematical answers: compare numbers in this process and expressions in worker processes."""

import importlib.util
from collections import OrderedDict
from typing import Any, Self

from nemo_gym.errors import EnvFailed
from nemo_gym.grading.extraction import strip_reasoning
from nemo_gym.grading.math import MAX_QUESTION, NeedsSymbols, compare_math, extract_math_answer, raise_needs_symbols
from nemo_gym.grading.result_types import ExtractedAnswer, NoAnswer, Verdict, VerdictKind, no_answer_verdict
from nemo_gym.workers.pool import WorkerFailure, WorkerPool, WorkerReply

COMPARE_FUNCTION = "nemo_gym.workers.symbolic_math:compare"
CACHED_VERDICTS = 4096
"""Size of the cache of symbolic verdicts: repeats of a task often give the same answers."""


class MathVerifier:
    """Grades mathematical answers. Verdicts do not depend on threads, event loops, processes or load.

    Most answers are numbers, which are compared in this process. Expressions are compared in worker processes that
    import math-verify (`pip install 'nemo-gym[math]'`); a comparison that exceeds a limit is `undecided`.
    """

    def __init__(
        self,
        *,
        size: int | None = None,
        cpu_seconds: float = 3.0,
        wall_seconds: float = 60.0,
        memory_bytes: int = 1 << 30,
    ) -> None:
        self.pool = WorkerPool(
            COMPARE_FUNCTION, size=size, cpu_seconds=cpu_seconds, wall_seconds=wall_seconds, memory_bytes=memory_bytes
        )
        self._verdicts: OrderedDict[tuple[str, str, str | None], Verdict] = OrderedDict()

    def verify(self, text: str, gold: str, *, question: str | None = None) -> Verdict:
        """Find the final answer in the model's text and compare it with `gold`."""
        answer = self.extract(text)
        if isinstance(answer, NoAnswer):
            return no_answer_verdict(answer)
        return self.compare(answer.value, gold, question=question)

    async def verify_async(self, text: str, gold: str, *, question: str | None = None) -> Verdict:
        """Run `verify` without blocking the event loop."""
        answer = self.extract(text)
        if isinstance(answer, NoAnswer):
            return no_answer_verdict(answer)
        return await self.compare_async(answer.value, gold, question=question)

    def extract(self, text: str) -> ExtractedAnswer[str] | NoAnswer:
        """Find the final answer after the reasoning, with its span in `text`."""
        reply = strip_reasoning(text)
        if isinstance(reply, NoAnswer):
            return reply
        answer = extract_math_answer(reply.value)
        if isinstance(answer, NoAnswer):
            return answer
        start, end = answer.span
        return ExtractedAnswer(answer.value, (reply.span[0] + start, reply.span[0] + end), answer.rule)

    def compare(self, answer: str, gold: str, *, question: str | None = None) -> Verdict:
        """Compare an extracted answer with `gold`."""
        verdict = self._verdict_without_worker(answer, gold, question)
        if verdict is not None:
            return verdict
        reply = self.pool.run(self._payload(answer, gold, question))
        return self._verdict_from_reply(answer, gold, question, reply)

    async def compare_async(self, answer: str, gold: str, *, question: str | None = None) -> Verdict:
        """Run `compare` without blocking the event loop."""
        verdict = self._verdict_without_worker(answer, gold, question)
        if verdict is not None:
            return verdict
        reply = await self.pool.run_async(self._payload(answer, gold, question))
        return self._verdict_from_reply(answer, gold, question, reply)

    def close(self) -> None:
        """Stop the worker processes."""
        self.pool.close()

    def _verdict_without_worker(self, answer: str, gold: str, question: str | None) -> Verdict | None:
        """Return the verdict on numbers or from the cache; None if a worker must compare expressions."""
        try:
            return compare_math(answer, gold, symbolic=raise_needs_symbols, question=question)
        except NeedsSymbols:
            return self._verdicts.get((answer, gold, question))

    def _payload(self, answer: str, gold: str, question: str | None) -> dict[str, Any]:
        """Return the argument of `symbolic_math.compare`; raise EnvFailed if math-verify is not installed."""
        if importlib.util.find_spec("math_verify") is None:
            raise EnvFailed("math-verify is not installed", fix="pip install 'nemo-gym[math]'")
        question_start = None if question is None else question[:MAX_QUESTION]
        return {"answer": answer, "gold": gold, "question": question_start}

    def _verdict_from_reply(self, answer: str, gold: str, question: str | None, reply: WorkerReply) -> Verdict:
        """Convert a worker's reply to a verdict and cache it; a failed call is undecided and not cached."""
        if isinstance(reply, WorkerFailure):
            return Verdict(VerdictKind.UNDECIDED, answer, "symbolic", f"{reply.kind}: {reply.reason}")
        value = reply.value
        verdict = Verdict(VerdictKind(value["outcome"]), answer, value["rule"], value["reason"])
        self._verdicts[(answer, gold, question)] = verdict
        if len(self._verdicts) > CACHED_VERDICTS:
            self._verdicts.popitem(last=False)
        return verdict

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
