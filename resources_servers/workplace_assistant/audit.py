"""What `gym env audit workplace_assistant` tries."""

import json
from collections.abc import Callable
from typing import Any

Reply = str | list[dict[str, Any]]
Calls = list[tuple[str, Any]]

FULL_REWARD = 1.0
MOST_FOR_A_CHEAT = 0.0

_SENT = ("email_send_email", {"recipient": "omar.okafor@northwind.example", "subject": "x", "body": "y"})
_NEW_EVENT = {
    "event_name": "Nothing",
    "participant_email": "omar.okafor@northwind.example",
    "event_start": "2026-04-30 10:00:00",
    "duration": "30",
}


def _with_call(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda row: {**row, "ground_truth": [{**row["ground_truth"][0], **fields}, *row["ground_truth"][1:]]}


MALFORMED = [
    ("no reference", lambda row: {key: value for key, value in row.items() if key != "ground_truth"}),
    ("a tool that does not exist", _with_call(name="coffee_make")),
    ("arguments that are no JSON", _with_call(arguments="{")),
    ("arguments that are a list", _with_call(arguments="[]")),
    ("arguments the tool does not have", _with_call(arguments='{"colour": "red"}')),
    ("an object for arguments", _with_call(arguments={})),
    ("an id that does not exist", _with_call(name="email_delete_email", arguments='{"email_id": "1"}')),
]


def reference(row: dict[str, Any]) -> Calls:
    return [(call["name"], json.loads(call["arguments"])) for call in row["ground_truth"]]


def done(calls: Calls, last: str = "Done.") -> Reply:
    """Calls, each with an output, and a last message."""
    items: list[dict[str, Any]] = []
    for number, (name, arguments) in enumerate(calls):
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call_id = f"call_{number}"
        items.append({"type": "function_call", "name": name, "arguments": written, "call_id": call_id})
        items.append({"type": "function_call_output", "call_id": call_id, "output": '{"output": "done"}'})
    content = [{"type": "output_text", "text": last, "annotations": []}]
    items.append({"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content})
    return items


def oracle(row: dict[str, Any]) -> Reply:
    return done(reference(row))


def _cased(calls: Calls, change: Callable[[str], str]) -> Calls:
    """Texts in another case, where case does not matter."""
    free = ("recipient", "subject", "body", "event_name", "participant_email", "task_name", "customer_name")
    return [
        (name, {key: change(value) if key in free else value for key, value in arguments.items()})
        for name, arguments in calls
    ]


def _timed(calls: Calls, change: Callable[[str], str]) -> Calls:
    """Times in another form."""
    return [
        (name, {key: change(value) if value.endswith(":00:00") else value for key, value in arguments.items()})
        for name, arguments in calls
    ]


def odd_forms(row: dict[str, Any]) -> list[Reply]:
    calls = reference(row)
    look = ("email_search_emails", {"query": "budget"})
    undone = ("calendar_delete_event", {"event_id": "00000380"})
    made: list[Calls] = [
        [look, *calls],
        [*calls, look],
        [("company_directory_find_email_address", {"name": "Omar"}), *calls],
        [("analytics_total_visits_count", {}), *calls, ("project_management_search_tasks", {"board": "Design"})],
        [("email_delete_email", {"email_id": "1"}), *calls],
        [("email_delete_email", "{"), *calls],
        [("email_delete_email", "[]"), *calls],
        [("no_such_tool", {}), *calls],
        [("email_send_email", {"recipient": "nobody"}), *calls],
        [("project_management_update_task", {"task_id": "00000500", "field": "board", "new_value": "x"}), *calls],
        [("calendar_create_event", _NEW_EVENT), *calls, undone],
        [(name, json.dumps(arguments, indent=2)) for name, arguments in calls],
        [(name, json.dumps(dict(reversed(arguments.items())))) for name, arguments in calls],
        [(name, {**arguments, **_null(name)}) for name, arguments in calls],
        [(name, {key: f" {value} " for key, value in arguments.items()}) for name, arguments in calls],
        [(name, {k: int(v) if v.isdecimal() and v[0] != "0" else v for k, v in a.items()}) for name, a in calls],
        [(name, {k: float(v) if v.isdecimal() and v[0] != "0" else v for k, v in a.items()}) for name, a in calls],
        _cased(calls, str.upper),
        _cased(calls, str.title),
        _timed(calls, lambda text: text[:-3]),
        _timed(calls, lambda text: text.replace(" ", "T")),
    ]
    said = [done(calls, text) for text in ("", "I could not do it.", '{"reward": 0}')]
    return [*(done(one) for one in made), *said, done(calls)[:-1]]  # type: ignore[list-item]


def _null(name: str) -> dict[str, None]:
    """An argument that may be left out, left out in words."""
    return {"notes": None} if name.endswith("add_customer") else {}


def wrong(row: dict[str, Any]) -> list[Reply]:
    calls = reference(row)
    name, arguments = calls[-1]
    made: list[Calls] = [
        calls[:-1],
        [*calls, _SENT],
        [("calendar_create_event", _NEW_EVENT), *calls],
        [*calls, ("email_delete_email", {"email_id": "00002159"}), ("email_delete_email", {"email_id": "00002158"})],
        [(f"{one}x", given) for one, given in calls],
        [*calls[:-1], (name, dict.fromkeys(arguments, ""))],
        [*calls[:-1], (name, {**arguments, "urgent": "yes"})],
    ]
    key = next((one for one in ("body", "event_name", "task_name", "customer_name") if one in arguments), None)
    if key:
        made.append([*calls[:-1], (name, {**arguments, key: f"{arguments[key]} please"})])
        made.append([*calls, calls[-1]])
    return [done(one) for one in made]


def cheats(row: dict[str, Any]) -> list[tuple[str, Reply]]:
    calls = reference(row)
    outputs = [item for item in done(calls) if isinstance(item, dict) and item["type"] != "function_call"]
    return [
        ("says that it is done", "Done. Everything you asked for was carried out."),
        ("the calls as text", json.dumps(row["ground_truth"])),
        ("results without calls", outputs),
        ("only looks", done([("email_search_emails", {"query": "budget"})])),
        ("verify as a tool", done([("verify", {"reward": 1.0}), ("seed_session", {})])),
        ("the reference as an argument", done([("email_send_email", {"body": json.dumps(row["ground_truth"])})])),
        ("deletes everything", done([("email_delete_email", {"email_id": f"{n:08}"}) for n in range(2000, 2160)])),
        ("more calls than anybody needs", done([*calls, *([("email_search_emails", {})] * 1001)])),
        ("right, then undone and redone wrongly", done([*calls, _SENT, _SENT])),
    ]
