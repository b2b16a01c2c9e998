"""Parse times and constraints, and find the problem of a schedule."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from nemo_gym.grading.text import fold

Relation = Literal["before", "after", "between", "at"]

_TIME = re.compile(r"(?P<hour>\d{1,2})(?::(?P<minute>\d{2}))?(?::00)?\s?(?P<half>[ap])?(?:\.?m\.?)?", re.IGNORECASE)
_WORDS = {"noon": 12 * 60, "midday": 12 * 60, "midnight": 0}
_CONSTRAINT = re.compile(
    r"(?P<relation>before|after|at)\s+(?P<first>[\w:. ]{1,20})"
    r"|between\s+(?P<from>[\w:. ]{1,20}?)\s*(?:and|-)\s*(?P<to>[\w:. ]{1,20})",
    re.IGNORECASE,
)
DAY = 24 * 60
LONGEST_NUMBER = 100
LONGEST_TIME = 20


def parse_time(text: str) -> int | None:
    """Return a time of day (`10am`, `10:30 AM`, `14:00`, `noon`) as minutes since midnight, or None."""
    time = " ".join(fold(text[: LONGEST_TIME + 1]).text.split()).lower()
    if len(time) > LONGEST_TIME:
        return None
    if time in _WORDS:
        return _WORDS[time]
    match = _TIME.fullmatch(time)
    if match is None:
        return None
    hour, minute, half = int(match["hour"]), int(match["minute"] or 0), match["half"]
    if (half is None) != ("m" not in time) or minute > 59:
        return None
    if half is None:
        return hour * 60 + minute if hour < 24 and match["minute"] is not None else None
    if not 1 <= hour <= 12:
        return None
    return (hour % 12 + 12 * (half == "p")) * 60 + minute


@dataclass(frozen=True)
class Constraint:
    """A bound on start and end of an event, in minutes; `at` fixes the start."""

    relation: Relation
    first: int
    second: int = DAY

    def allows(self, start: int, end: int) -> bool:
        if self.relation == "before":
            return end <= self.first
        if self.relation == "after":
            return start >= self.first
        if self.relation == "at":
            return start == self.first
        return self.first <= start and end <= self.second


def parse_constraint(text: str) -> Constraint | None:
    """Parse `before 10am`, `after 2pm`, `between 1pm and 3pm` or `at 9:30am`; return None for anything else."""
    match = _CONSTRAINT.fullmatch(text.strip())
    if match is None:
        return None
    if match["relation"]:
        relation = match["relation"].lower()
        first = parse_time(match["first"])
        return None if first is None else Constraint(relation, first)  # type: ignore[arg-type]
    first, second = parse_time(match["from"]), parse_time(match["to"])
    if first is None or second is None or first >= second:
        return None
    return Constraint("between", first, second)


@dataclass(frozen=True)
class EventRule:
    """The expected properties of one event."""

    event_id: str
    duration: int
    earliest: int
    latest: int
    constraint: Constraint | None


@dataclass(frozen=True)
class PlacedEvent:
    """An event of the reply, with its start and duration in minutes."""

    event_id: str
    start: int
    duration: int

    @property
    def end(self) -> int:
        return self.start + self.duration


def parse_event(entry: Any) -> PlacedEvent | str:
    """Parse one entry of the reply's list; return the problem if it is not an event."""
    if not isinstance(entry, dict):
        return "an entry is not an object"
    event_id, start, duration = (entry.get(key) for key in ("event_id", "start_time", "duration"))
    if isinstance(event_id, bool) or not isinstance(event_id, int | str):
        return "an entry has no event_id"
    at = parse_time(start) if isinstance(start, str) else None
    if at is None:
        return f"event {event_id}: start_time is not a time"
    if isinstance(duration, str) and duration.strip().isdecimal() and len(duration) < LONGEST_NUMBER:
        duration = int(duration)
    if isinstance(duration, float) and duration.is_integer():
        duration = int(duration)
    if isinstance(duration, bool) or not isinstance(duration, int) or not 0 < duration <= DAY:
        return f"event {event_id}: duration is not a number of minutes"
    return PlacedEvent(str(event_id).strip(), at, duration)


def schedule_problem(entries: Sequence[Any], rules: Sequence[EventRule]) -> str | None:
    """Return the first problem of a schedule, or None if it keeps every rule."""
    if len(entries) != len(rules):
        return f"{len(rules)} events are expected and {len(entries)} are given"
    events: dict[str, PlacedEvent] = {}
    for entry in entries:
        event = parse_event(entry)
        if isinstance(event, str):
            return event
        if event.event_id in events:
            return f"event {event.event_id} is given twice"
        events[event.event_id] = event
    for rule in rules:
        if rule.event_id not in events:
            return f"event {rule.event_id} is missing"
        if problem := _event_problem(events[rule.event_id], rule):
            return problem
    in_order = sorted(events.values(), key=lambda event: event.start)
    for event, following in pairwise(in_order):
        if following.start < event.end:
            return f"events {event.event_id} and {following.event_id} overlap"
    return None


def _event_problem(event: PlacedEvent, rule: EventRule) -> str | None:
    if event.duration != rule.duration:
        return f"event {event.event_id} lasts {event.duration} minutes and not {rule.duration}"
    if event.start < rule.earliest or event.end > rule.latest:
        return f"event {event.event_id} lies outside its window"
    if rule.constraint is not None and not rule.constraint.allows(event.start, event.end):
        return f"event {event.event_id} breaks its constraint"
    return None
