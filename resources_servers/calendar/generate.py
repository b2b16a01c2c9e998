"""Write conversations that plan a day, event by event: `python generate.py OUT --rows 40 --seed 0`."""

import json
import random
from typing import Any

from nemo_gym.data.generator_command import run_generator

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
    """Format minutes since midnight: `9am`, `1:30pm`."""
    hour, rest = divmod(minute, 60)
    text = f"{(hour - 1) % 12 + 1}" + (f":{rest:02}" if rest else "")
    return text + ("pm" if hour >= 12 else "am")


def day(draw: random.Random) -> list[tuple[int, int]]:
    """Draw start and duration of events that fit into one day, in order."""
    count = draw.randint(3, 5)
    events, now = [], OPENS
    for _ in range(count):
        now += 15 * draw.randint(0, 4)
        duration = draw.choice(DURATIONS)
        if now + duration > CLOSES:
            break
        events.append((now, duration))
        now += duration
    return events


def wish(draw: random.Random, start: int, duration: int) -> str | None:
    """Draw a constraint that an event at this time keeps."""
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
    """Build one conversation with the assistant's earlier answers; the last wish is still to be planned."""
    draw = random.Random(seed)
    slots = day(draw)
    names = draw.sample(NAMES, len(slots))
    order = draw.sample(range(len(slots)), len(slots))
    messages = [{"role": "system", "content": SYSTEM.format(opens=clock(OPENS), closes=clock(CLOSES))}]
    expected: dict[str, Any] = {}
    calendar: list[dict[str, Any]] = []
    for number, slot in enumerate(order, start=1):
        start, duration = slots[slot]
        constraint = wish(draw, start, duration)
        wording = f", {constraint}" if constraint else ""
        request = f"Please add {names[slot]}, {duration} minutes{wording}. Its event_id is {number}."
        messages.append({"role": "user", "content": request})
        expected[str(number)] = {
            "event_id": number,
            "event_name": names[slot],
            "duration": duration,
            "constraint": constraint,
            "min_time": clock(OPENS),
            "max_time": clock(CLOSES),
        }
        event = {"event_id": number, "event_name": names[slot], "start_time": clock(start), "duration": duration}
        calendar.append(event)
        if number < len(order):
            messages.append({"role": "assistant", "content": json.dumps(calendar)})
    return {
        "responses_create_params": {"input": messages},
        "exp_cal_state": expected,
        "possible_schedule": calendar,
    }


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return `count` conversations, each with a schedule that keeps every rule (`possible_schedule`)."""
    return [row(f"{seed}:{number}") for number in range(count)]


def main() -> None:
    run_generator(rows, __doc__)


if __name__ == "__main__":
    main()
