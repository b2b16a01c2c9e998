"""The early stop of a run: too many failures, spent tokens or money, an endpoint that refuses it, a lost server."""

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nemo_gym.errors import ConfigError, GymError
from nemo_gym.metrics.prices import PriceTable
from nemo_gym.rollouts.outcome import (
    AnsweredJob,
    FailedRollout,
    Failure,
    Job,
    Outcome,
    OutcomeCounts,
    ScoredRollout,
)
from nemo_gym.rollouts.plan import PlanSummary
from nemo_gym.rollouts.refusals import endpoint_refused, refusal_reason
from nemo_gym.transport.event_loop import SlotQueue
from nemo_gym.wire.stored_rollout import StoredRollout

logger = logging.getLogger("nemo_gym.rollouts")

FIRST_ROLLOUTS = 4
"""Rollouts in flight at least, until one has ended and shown what a rollout costs."""
ASSUMED_TOKENS = 100_000
ASSUMED_COST = 0.25
"""Tokens and dollars of a rollout until one has ended."""


class BudgetGate:
    """Admits rollouts of a run with a budget, so that those in flight do not spend more than is left.

    As many are in flight as the rest of the budget pays for, each at the price of the dearest attempt so far; but at
    least one.
    """

    def __init__(self, max_tokens: int | None, max_cost: float | None) -> None:
        tokens = math.inf if max_tokens is None else max_tokens / ASSUMED_TOKENS
        cost = math.inf if max_cost is None else max_cost / ASSUMED_COST
        self._max_in_flight = max(float(FIRST_ROLLOUTS), min(tokens, cost))
        self._dearest_tokens, self._dearest_cost = 0, 0.0
        self._in_flight = 0
        self._queue = SlotQueue()

    async def enter(self) -> None:
        """Wait until another rollout may be sent."""
        if self._in_flight < self._max_in_flight and not self._queue:
            self._in_flight += 1
        else:
            await self._queue.wait(self.leave)

    def leave(self) -> None:
        """End a rollout that `enter` admitted."""
        self._in_flight -= 1
        self._admit_waiting()

    def record(self, tokens: int, cost: float, *, tokens_left: float, cost_left: float) -> None:
        """Record what an attempt cost and what is left of the budget."""
        self._dearest_tokens = max(self._dearest_tokens, tokens)
        self._dearest_cost = max(self._dearest_cost, cost)
        by_tokens = tokens_left // self._dearest_tokens if self._dearest_tokens else math.inf
        by_cost = cost_left // self._dearest_cost if self._dearest_cost else math.inf
        self._max_in_flight = max(1.0, min(by_tokens, by_cost))
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        while self._queue and self._in_flight < self._max_in_flight and self._queue.grant():
            self._in_flight += 1


@dataclass(kw_only=True)
class StopCondition:
    """Early stop of a run: after `max_failures` at once; after `max_tokens` or `max_cost`, when those in flight end."""

    max_failures: int | None = None
    max_tokens: int | None = None
    tokens: int = 0
    """Tokens used so far, if they have a maximum; a resumed run starts with those of earlier runs."""
    max_cost: float | None = None
    prices: PriceTable | None = None
    cost: float = field(default=0.0, init=False)
    failures: int = 0
    refusal: Failure | None = field(default=None, init=False)
    """The refusal of a model endpoint that stopped the run."""
    answers: dict[str, AnsweredJob] = field(default_factory=dict, init=False)
    """By agent: the rollout sent last whose model calls succeeded; sent at 0 if that was in an earlier run."""
    lost_servers: set[str] = field(default_factory=set, init=False)
    """Servers that ended for good; rollouts that need them are not started."""
    reason: str | None = field(default=None, init=False)
    """Reason why no further rollouts are started; None while they are."""
    is_immediate: bool = field(default=False, init=False)
    """True if the rollouts in flight are cancelled as well."""
    gate: BudgetGate | None = field(default=None, init=False)
    """Admits the rollouts of a run with a maximum of tokens or cost; None without one."""

    def __post_init__(self) -> None:
        if self.max_tokens is not None or self.max_cost is not None:
            self.gate = BudgetGate(self.max_tokens, self.max_cost)
        self._check_tokens()

    def add_attempt(self, outcome: Outcome) -> None:
        """Add the tokens and the cost of an attempt, scored or not, to those used; without a maximum, do nothing."""
        if self.gate is None:
            return
        tokens, cost_before = StoredRollout(outcome.record).total_tokens, self.cost
        if self.max_tokens is not None:
            self.tokens += tokens
            self._check_tokens()
        if self.max_cost is not None:
            self.add_costs([outcome.record])
        if tokens or isinstance(outcome, ScoredRollout):  # others say nothing about the price of a rollout
            tokens_left = math.inf if self.max_tokens is None else self.max_tokens - self.tokens
            cost_left = math.inf if self.max_cost is None else self.max_cost - self.cost
            self.gate.record(tokens, self.cost - cost_before, tokens_left=tokens_left, cost_left=cost_left)

    def add_costs(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Add the cost of attempts; without a price for a model, the maximum cost cannot be kept, and the run stops."""
        for record in records:
            cost = self.prices.cost_of_record(record) if self.prices is not None else None
            if cost is None:
                self.reason = self.reason or f"prices has no price for the model {StoredRollout(record).model!r}"
            else:
                self.cost += cost
        if self.max_cost is not None and self.cost >= self.max_cost:
            self.reason = self.reason or f"${self.cost:.2f} are spent (max_total_cost {self.max_cost:g})"

    def record_answer(self, job: Job, sent_at: float) -> None:
        """Record a rollout whose model calls succeeded."""
        latest = self.answers.get(job.agent)
        if latest is None or latest.sent_at <= sent_at:
            self.answers[job.agent] = AnsweredJob(job, sent_at)

    def add_outcome(self, outcome: Outcome) -> None:
        """Count the final outcome of a rollout if it is a failure."""
        if not isinstance(outcome, FailedRollout):
            return
        self.failures += 1
        if self.max_failures is not None and self.failures >= self.max_failures:
            rollouts = "a rollout" if self.max_failures == 1 else f"{self.failures} rollouts"
            self.reason = f"{rollouts} failed (max_failures {self.max_failures})"
            self.is_immediate = True

    def refuse(self, failure: Failure) -> None:
        """Start no further rollouts, because a model endpoint refuses the run; an earlier reason is kept."""
        if self.reason is None:
            self.refusal = failure
            self.reason = f"{failure.server}: {refusal_reason(failure)}"

    def finish(self) -> None:
        """Set the reason if rollouts were not started because of a lost server."""
        if self.lost_servers and self.reason is None:
            self.reason = f"{', '.join(sorted(self.lost_servers))} ended and will not be restarted"

    def _check_tokens(self) -> None:
        if self.max_tokens is not None and self.tokens >= self.max_tokens and self.reason is None:
            self.reason = f"{self.tokens:,} tokens are spent (max_total_tokens {self.max_tokens:,})"


def report_stop(stop: StopCondition, counts: OutcomeCounts, summary: PlanSummary, servers: Mapping[str, Any]) -> None:
    """Add the reason of an early stop to the counts, and log it, unless the budget was spent by the last rollouts."""
    is_complete = counts.scored + counts.limits.total() >= summary.to_run
    if stop.reason is not None and not (is_complete and stop.refusal is None):
        counts.stop(stop.reason, summary.to_run)
        log = logger.info if stop.refusal else logger.warning  # `counts.problem` reports a refusal as an error
        log("stopped early: %s; use --resume to run the rest", stop.reason)
    if stop.refusal is not None:
        failed = counts.failed.total() - counts.refused
        failed_text = f", {failed} failed" if failed else ""
        scored = summary.finished + counts.scored
        not_tried = counts.not_run + counts.cancelled + counts.refused
        tried = f"{scored} scored{failed_text}, {not_tried} not tried"
        counts.problem = endpoint_refused(stop.refusal, servers, tried)


def price_table(config: Any) -> PriceTable:
    """Return the price table of the options of a run.

    Raises:
        ConfigError: the table is invalid, or empty although a maximum cost is set.
    """
    prices = PriceTable(config.prices)
    if config.max_total_cost is not None and not prices:
        fix = "prices: {<model>: {input: 2.0, output: 8.0}} in env.yaml, in dollars per million tokens"
        raise ConfigError("a maximum cost needs a price table", where="max_total_cost (--max-cost)", fix=fix)
    return prices


class IncompleteRun(GymError, RuntimeError):
    """Rollouts of a run that must be complete have no score."""


def check_complete(counts: OutcomeCounts, summary: PlanSummary) -> None:
    """Raise IncompleteRun unless every rollout of a run, earlier parts included, is scored."""
    scored = summary.finished + counts.scored
    if scored < summary.total:  # `to_run` lacks the rollouts that a resumed run has given up
        raise IncompleteRun(f"EVAL FAILED: {scored}/{summary.total} rollouts are scored (require_complete)")
