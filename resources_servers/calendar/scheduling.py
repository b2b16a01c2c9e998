"""Times, constraints and what is wrong with a schedule. Pure: texts and numbers in, reasons out."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from nemo_gym.grading.normalise import fold

Relation = Literal["before", "after", "between", "at"]

_TIME = re.compile(r"(?P<hour>\d{1,2})(?::(?P<minute>\d{2}))?(?::00)?\s?(?P<half>[ap])?(?:\.?m\.?)?", re.IGNORECASE)
_WORDS = {"noon": 12 * 60, "midday": 12 * 60, "midnight": 0}
_CONSTRAINT = re.compile(
    r"(?P<relation>before|after|at)\s+(?P<first>[\w:. ]{1,20})"
    r"|between\s+(?P<from>[\w:. ]{1,20}?)\s*(?:and|-)\s*(?P<to>[\w:. ]{1,20})",
    re.IGNORECASE,
)
DAY = 24 * 60
LONGEST_TIME = 20


def minutes(text: str) -> int | None:
    """A time of day as minutes since midnight: `10am`, `10:30 AM`, `14:00`, `noon`; None when it is none."""
    said = " ".join(fold(text[: LONGEST_TIME + 1]).text.split()).lower()
    if len(said) > LONGEST_TIME:
        return None
    if said in _WORDS:
        return _WORDS[said]
    found = _TIME.fullmatch(said)
    if found is None:
        return None
    hour, minute, half = int(found["hour"]), int(found["minute"] or 0), found["half"]
    if (half is None) != ("m" not in said) or minute > 59:
        return None
    if half is None:
        return hour * 60 + minute if hour < 24 and found["minute"] is not None else None
    if not 1 <= hour <= 12:
        return None
    return (hour % 12 + 12 * (half == "p")) * 60 + minute


@dataclass(frozen=True)
class Constraint:
    """Where an event may lie, in minutes: what begins and ends within it is allowed, `at` fixes the beginning."""

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


def constraint(text: str) -> Constraint | None:
    """`before 10am`, `after 2pm`, `between 1pm and 3pm`, `at 9:30am` as data; None when it is none of them."""
    found = _CONSTRAINT.fullmatch(text.strip())
    if found is None:
        return None
    if found["relation"]:
        relation = found["relation"].lower()
        first = minutes(found["first"])
        return None if first is None else Constraint(relation, first)  # type: ignore[arg-type]
    first, second = minutes(found["from"]), minutes(found["to"])
    if first is None or second is None or first >= second:
        return None
    return Constraint("between", first, second)


@dataclass(frozen=True)
class Wanted:
    """What is expected of one event."""

    event_id: str
    duration: int
    earliest: int
    latest: int
    constraint: Constraint | None


@dataclass(frozen=True)
class Placed:
    """An event of the reply."""

    event_id: str
    start: int
    duration: int

    @property
    def end(self) -> int:
        return self.start + self.duration


def placed(entry: Any) -> Placed | str:
    """One entry of the reply's list, or what is wrong with it."""
    if not isinstance(entry, dict):
        return "an entry is not an object"
    event_id, start, duration = (entry.get(key) for key in ("event_id", "start_time", "duration"))
    if isinstance(event_id, bool) or not isinstance(event_id, int | str):
        return "an entry has no event_id"
    at = minutes(start) if isinstance(start, str) else None
    if at is None:
        return f"event {event_id}: start_time is not a time"
    if isinstance(duration, str) and duration.strip().isdecimal():
        duration = int(duration)
    if isinstance(duration, float) and duration.is_integer():
        duration = int(duration)
    if isinstance(duration, bool) or not isinstance(duration, int) or not 0 < duration <= DAY:
        return f"event {event_id}: duration is not a number of minutes"
    return Placed(str(event_id).strip(), at, duration)


def problem(entries: Sequence[Any], wanted: Sequence[Wanted]) -> str | None:
    """Why a schedule is not the one asked for; None when it is."""
    if len(entries) != len(wanted):
        return f"{len(wanted)} events are expected and {len(entries)} are given"
    events: dict[str, Placed] = {}
    for entry in entries:
        event = placed(entry)
        if isinstance(event, str):
            return event
        if event.event_id in events:
            return f"event {event.event_id} is given twice"
        events[event.event_id] = event
    for one in wanted:
        if one.event_id not in events:
            return f"event {one.event_id} is missing"
        if found := _misplaced(events[one.event_id], one):
            return found
    in_order = sorted(events.values(), key=lambda event: event.start)
    for event, following in pairwise(in_order):
        if following.start < event.end:
            return f"events {event.event_id} and {following.event_id} overlap"
    return None


def _misplaced(event: Placed, wanted: Wanted) -> str | None:
    if event.duration != wanted.duration:
        return f"event {event.event_id} lasts {event.duration} minutes and not {wanted.duration}"
    if event.start < wanted.earliest or event.end > wanted.latest:
        return f"event {event.event_id} lies outside its window"
    if wanted.constraint is not None and not wanted.constraint.allows(event.start, event.end):
        return f"event {event.event_id} breaks its constraint"
    return None
