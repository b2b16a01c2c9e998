"""What the driver and a node collector send each other: jobs in one direction, outcomes in the other.

Each row and record travels as JSON bytes, so that a message is checked and limited like an answer to `/run`.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from nemo_gym.rollouts.outcome import (
    CancelledRollout,
    FailedRollout,
    Failure,
    Job,
    LimitedRollout,
    Outcome,
    ScoredRollout,
)
from nemo_gym.wire.call_reply import encode_json, parse_json

SCORED, FAILED, LIMITED, CANCELLED = "scored", "failed", "limited", "cancelled"

JobMessage = list[tuple[int, bytes]]
"""Tickets with the rows of their jobs."""


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """The outcome of a ticket, without the row of its job, which the driver has."""

    ticket: int
    kind: str
    record: bytes
    details: dict[str, Any] = field(default_factory=dict)
    """The failure and its duration, or the limit."""

    def outcome_of(self, job: Job) -> Outcome:
        """Return the outcome for the job of the ticket."""
        record = parse_json(self.record)
        if self.kind == SCORED:
            return ScoredRollout(job, record)
        if self.kind == FAILED:
            return FailedRollout(job, Failure(**self.details["failure"]), record, self.details["seconds"])
        if self.kind == LIMITED:
            return LimitedRollout(job, self.details["limit_name"], record, self.details["limit_value"])
        return CancelledRollout(job, record)


def encode_jobs(jobs: Iterable[tuple[int, Job]]) -> JobMessage:
    return [(ticket, encode_json(job.row)) for ticket, job in jobs]


def decode_jobs(message: JobMessage) -> list[tuple[int, Job]]:
    return [(ticket, Job.of(parse_json(row))) for ticket, row in message]


def encode_outcome(ticket: int, outcome: Outcome) -> NodeOutcome:
    """Encode one outcome. A lone surrogate becomes U+FFFD, as in the store."""
    record = encode_json(outcome.record)
    if isinstance(outcome, ScoredRollout):
        return NodeOutcome(ticket, SCORED, record)
    if isinstance(outcome, FailedRollout):
        return NodeOutcome(ticket, FAILED, record, {"failure": asdict(outcome.failure), "seconds": outcome.seconds})
    if isinstance(outcome, LimitedRollout):
        limit = {"limit_name": outcome.limit_name, "limit_value": outcome.limit_value}
        return NodeOutcome(ticket, LIMITED, record, limit)
    return NodeOutcome(ticket, CANCELLED, record)
