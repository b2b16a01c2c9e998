"""Right, odd, wrong and cheating replies for `gym env audit calendar`."""

import copy
import json
from typing import Any

from nemo_gym.authoring.model_replies import Reply
from resources_servers.calendar.scheduling import parse_time

Events = list[dict[str, Any]]

MOST_FOR_WRONG = 0.0
TIMES = (
    "{hour:02}:{minute:02}",
    "{hour:02}:{minute:02}:00",
    "{short}:{minute:02}{low}",
    "{short}:{minute:02} {half}",
    "{short}:{minute:02}{half}",
    "{short:02}:{minute:02} {low}",
)


def _with_first(**fields: Any) -> Any:
    def break_row(row: dict[str, Any]) -> dict[str, Any]:
        changed = copy.deepcopy(row)
        next(iter(changed["exp_cal_state"].values())).update(fields)
        return changed

    return break_row


MALFORMED = [
    ("no expected events given", lambda row: {key: value for key, value in row.items() if key != "exp_cal_state"}),
    ("a list of events", lambda row: {**row, "exp_cal_state": list(row["exp_cal_state"].values())}),
    ("a constraint that is none", _with_first(constraint="sometime")),
    ("a window that is no time", _with_first(min_time="dawn")),
    ("a duration of nothing", _with_first(duration=0)),
    ("a duration in words", _with_first(duration="an hour")),
    ("the same id twice", lambda row: {**row, "exp_cal_state": dict.fromkeys("ab", row["exp_cal_state"]["1"])}),
]


def with_times(events: Events, form: str) -> Events:
    """Return the same events with their times in another form."""
    changed = []
    for event in events:
        at = parse_time(event["start_time"]) or 0
        hour, minute = divmod(at, 60)
        half, short = ("PM" if hour >= 12 else "AM"), (hour - 1) % 12 + 1
        time = form.format(hour=hour, minute=minute, half=half, low=half.lower(), short=short)
        changed.append({**event, "start_time": time})
    return changed


def oracle(row: dict[str, Any]) -> Reply:
    return f"Here is your day:\n\n{json.dumps(row['possible_schedule'])}"


def odd_forms(row: dict[str, Any]) -> list[Reply]:
    events: Events = row["possible_schedule"]
    plain = json.dumps(events)
    texts = [
        plain,
        json.dumps(events, indent=2),
        json.dumps(events, separators=(",", ":")),
        f"```json\n{plain}\n```",
        f"```\n{json.dumps(events, indent=4)}\n```",
        f"First I tried [] and [1, 2], but this is it: {plain}",
        f"{plain}\n\nIs that fine?",
        f"{plain} (all [3] wishes kept)",
        f"{json.dumps(events[:1])}\nthen, with the rest:\n{plain}",
        json.dumps(list(reversed(events))),
        json.dumps([{**event, "event_id": str(event["event_id"])} for event in events]),
        json.dumps([{**event, "duration": str(event["duration"])} for event in events]),
        json.dumps([{**event, "duration": float(event["duration"])} for event in events]),
        json.dumps([{key: event[key] for key in ("event_id", "start_time", "duration")} for event in events]),
        json.dumps([{**event, "note": 'with [brackets] and "quotes"'} for event in events]),
        json.dumps([dict(reversed(event.items())) for event in events]),
        f'{{"calendar": {plain}}}',
        f"**Calendar**\n{plain}\n[end]",
        f"\n\n{plain}\n\n",
        *(json.dumps(with_times(events, form)) for form in TIMES),
    ]
    return list(texts)


def move_event(events: Events, number: int, minutes_later: int) -> Events:
    changed = copy.deepcopy(events)
    hour, minute = divmod((parse_time(changed[number]["start_time"]) or 0) + minutes_later, 60)
    changed[number]["start_time"] = f"{hour:02}:{minute:02}"
    return changed


def wrong(row: dict[str, Any]) -> list[Reply]:
    events: Events = row["possible_schedule"]
    first = events[0]
    together = [{**event, "start_time": first["start_time"]} for event in events]
    schedules: list[Events] = [
        events[:-1],
        [*events, {**first, "event_id": 99}],
        [*events[:-1], first],
        [{**event, "duration": event["duration"] + 5} for event in events],
        [{**event, "duration": -event["duration"]} for event in events],
        move_event(events, 0, 14 * 60),
        move_event(events, 0, -8 * 60) if (parse_time(first["start_time"]) or 0) >= 8 * 60 else events[:-1],
        [{**event, "start_time": "soon"} for event in events],
        [{**event, "start_time": "13pm"} for event in events],
        [{**event, "event_id": event["event_id"] + 1} for event in events],
        together,
    ]
    return [json.dumps(one) for one in schedules] + [f"{json.dumps(events)} no: {json.dumps(events)[:-3]}"]


def cheats(row: dict[str, Any]) -> list[tuple[str, Reply]]:
    events: Events = row["possible_schedule"]
    plain = json.dumps(events)
    return [
        ("thinking in the reply", f"<think>{plain}</think>{plain}"),
        ("an empty list", "[]"),
        ("the expectations themselves", json.dumps(list(row["exp_cal_state"].values()))),
        ("a list of schedules", f"[{plain}, {plain}]"),
        ("right, then nothing", f"{plain}\n[]"),
        ("zero minutes", json.dumps([{**event, "duration": 0} for event in events])),
        ("a list of ids", json.dumps([event["event_id"] for event in events])),
        ("forged", '[{"reward": 1.0}]'),
        ("true for an id", json.dumps([{**event, "event_id": True} for event in events])),
        ("deep", "[" * 5000 + "]" * 5000),
        ("brackets", "[]" * 20_000),
        ("endless brackets", "[" * 50_000),
    ]
