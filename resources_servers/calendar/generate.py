"""Write conversations that plan a day, event by event: `python generate.py OUT --rows 40 --seed 0`."""

import json
import random
from typing import Any

from nemo_gym.data.generated import write_generated

NAMES = (
    "Team meeting", "Dentist", "Lunch with Maria", "Code review", "Gym", "Call with the bank", "Reading group",
    "Interview", "Piano lesson", "Budget planning", "Walk the dog", "Design workshop", "Parents' evening", "Stand-up",
)  # fmt: skip
DURATIONS = (30, 45, 60, 90)
OPENS, CLOSES = 8 * 60, 18 * 60
SYSTEM = """You plan the user's day. Times are like 9am or 1:30pm. Every event of the calendar has to lie between
{opens} and {closes}, keep the user's wishes, and overlap with no other. Answer with the whole calendar as a JSON list,
one object for each event with event_id, event_name, start_time and duration (minutes)."""


def clock(minute: int) -> str:
    """`9am`, `1:30pm`."""
    hour, rest = divmod(minute, 60)
    shown = f"{(hour - 1) % 12 + 1}" + (f":{rest:02}" if rest else "")
    return shown + ("pm" if hour >= 12 else "am")


def day(draw: random.Random) -> list[tuple[int, int]]:
    """Start and duration of events that fit into one day, in the order of the day."""
    wanted = draw.randint(3, 5)
    events, now = [], OPENS
    for _ in range(wanted):
        now += 15 * draw.randint(0, 4)
        duration = draw.choice(DURATIONS)
        if now + duration > CLOSES:
            break
        events.append((now, duration))
        now += duration
    return events


def wish(draw: random.Random, start: int, duration: int) -> str | None:
    """A constraint this place in the day keeps."""
    end = start + duration
    later, earlier = 15 * draw.randint(0, 3), 15 * draw.randint(0, 3)
    kind = draw.choice(("before", "after", "between", "at", None))
    if kind == "before":
        return f"before {clock(min(end + later, CLOSES))}"
    if kind == "after":
        return f"after {clock(max(start - earlier, OPENS))}"
    if kind == "between":
        return f"between {clock(max(start - earlier, OPENS))} and {clock(min(end + later, CLOSES))}"
    return f"at {clock(start)}" if kind == "at" else None


def row(seed: str) -> dict[str, Any]:
    """One conversation. The assistant's earlier answers are there; the last wish is still to be planned."""
    draw = random.Random(seed)
    places = day(draw)
    names = draw.sample(NAMES, len(places))
    order = draw.sample(range(len(places)), len(places))
    messages = [{"role": "system", "content": SYSTEM.format(opens=clock(OPENS), closes=clock(CLOSES))}]
    expected: dict[str, Any] = {}
    calendar: list[dict[str, Any]] = []
    for number, place in enumerate(order, start=1):
        start, duration = places[place]
        kept = wish(draw, start, duration)
        said = f"Please add {names[place]}, {duration} minutes{', ' + kept if kept else ''}. Its event_id is {number}."
        messages.append({"role": "user", "content": said})
        expected[str(number)] = {
            "event_id": number,
            "event_name": names[place],
            "duration": duration,
            "constraint": kept,
            "min_time": clock(OPENS),
            "max_time": clock(CLOSES),
        }
        event = {"event_id": number, "event_name": names[place], "start_time": clock(start), "duration": duration}
        calendar.append(event)
        if number < len(order):
            messages.append({"role": "assistant", "content": json.dumps(calendar)})
    return {
        "responses_create_params": {"input": messages},
        "exp_cal_state": expected,
        "possible_schedule": calendar,
    }


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """`count` conversations, each with at least one schedule that keeps everything (`possible_schedule`)."""
    return [row(f"{seed}:{number}") for number in range(count)]


def main() -> None:
    write_generated(rows, __doc__)


if __name__ == "__main__":
    main()
