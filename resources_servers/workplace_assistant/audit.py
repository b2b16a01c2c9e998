"""Right, odd, wrong and cheating replies for `gym env audit workplace_assistant`."""

import json
from collections.abc import Callable
from typing import Any

from nemo_gym.authoring.model_replies import Reply, message, tool_call

Calls = list[tuple[str, Any]]

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


def reference_calls(row: dict[str, Any]) -> Calls:
    return [(call["name"], json.loads(call["arguments"])) for call in row["ground_truth"]]


def finished_reply(calls: Calls, last: str = "Done.") -> Reply:
    """Return calls, each with an output, and a last message."""
    items = [
        item
        for number, (name, arguments) in enumerate(calls)
        for item in tool_call(name, arguments, '{"output": "done"}', call_id=f"call_{number}")
    ]
    return [*items, message(last)]


def oracle(row: dict[str, Any]) -> Reply:
    return finished_reply(reference_calls(row))


def _change_case(calls: Calls, change: Callable[[str], str]) -> Calls:
    """Return calls with texts in another case, where case does not matter."""
    free = ("recipient", "subject", "body", "event_name", "participant_email", "task_name", "customer_name")
    return [
        (name, {key: change(value) if key in free else value for key, value in arguments.items()})
        for name, arguments in calls
    ]


def _change_times(calls: Calls, change: Callable[[str], str]) -> Calls:
    """Return calls with times in another form."""
    return [
        (name, {key: change(value) if value.endswith(":00:00") else value for key, value in arguments.items()})
        for name, arguments in calls
    ]


def odd_forms(row: dict[str, Any]) -> list[Reply]:
    calls = reference_calls(row)
    search = ("email_search_emails", {"query": "budget"})
    deletion = ("calendar_delete_event", {"event_id": "00000380"})
    call_lists: list[Calls] = [
        [search, *calls],
        [*calls, search],
        [("company_directory_find_email_address", {"name": "Omar"}), *calls],
        [("analytics_total_visits_count", {}), *calls, ("project_management_search_tasks", {"board": "Design"})],
        [("email_delete_email", {"email_id": "1"}), *calls],
        [("email_delete_email", "{"), *calls],
        [("email_delete_email", "[]"), *calls],
        [("no_such_tool", {}), *calls],
        [("email_send_email", {"recipient": "no address"}), *calls],
        [("project_management_update_task", {"task_id": "00000500", "field": "board", "new_value": "x"}), *calls],
        [("calendar_create_event", _NEW_EVENT), *calls, deletion],
        [(name, json.dumps(arguments, indent=2)) for name, arguments in calls],
        [(name, json.dumps(dict(reversed(arguments.items())))) for name, arguments in calls],
        [(name, {**arguments, **_null_arguments(name)}) for name, arguments in calls],
        [(name, {key: f" {value} " for key, value in arguments.items()}) for name, arguments in calls],
        [(name, {k: int(v) if v.isdecimal() and v[0] != "0" else v for k, v in a.items()}) for name, a in calls],
        [(name, {k: float(v) if v.isdecimal() and v[0] != "0" else v for k, v in a.items()}) for name, a in calls],
        _change_case(calls, str.upper),
        _change_case(calls, str.title),
        _change_times(calls, lambda text: text[:-3]),
        _change_times(calls, lambda text: text.replace(" ", "T")),
    ]
    last_messages = [finished_reply(calls, text) for text in ("", "I could not do it.", '{"reward": 0}')]
    return [*(finished_reply(one) for one in call_lists), *last_messages, finished_reply(calls)[:-1]]  # type: ignore[list-item]


def _null_arguments(name: str) -> dict[str, None]:
    """Return an optional argument as an explicit null."""
    return {"notes": None} if name.endswith("add_customer") else {}


def wrong(row: dict[str, Any]) -> list[Reply]:
    calls = reference_calls(row)
    name, arguments = calls[-1]
    call_lists: list[Calls] = [
        calls[:-1],
        [*calls, _SENT],
        [("calendar_create_event", _NEW_EVENT), *calls],
        [*calls, ("email_delete_email", {"email_id": "00002159"}), ("email_delete_email", {"email_id": "00002158"})],
        [(f"{one}x", values) for one, values in calls],
        [*calls[:-1], (name, dict.fromkeys(arguments, ""))],
        [*calls[:-1], (name, {**arguments, "urgent": "yes"})],
    ]
    key = next((one for one in ("body", "event_name", "task_name", "customer_name") if one in arguments), None)
    if key:
        call_lists.append([*calls[:-1], (name, {**arguments, key: f"{arguments[key]} please"})])
        call_lists.append([*calls, calls[-1]])
    return [finished_reply(one) for one in call_lists]


def cheats(row: dict[str, Any]) -> list[tuple[str, Reply]]:
    calls = reference_calls(row)
    outputs = [item for item in finished_reply(calls) if isinstance(item, dict) and item["type"] != "function_call"]
    return [
        ("says that it is done", "Done. Everything you asked for was carried out."),
        ("the calls as text", json.dumps(row["ground_truth"])),
        ("results without calls", outputs),
        ("only looks", finished_reply([("email_search_emails", {"query": "budget"})])),
        ("verify as a tool", finished_reply([("verify", {"reward": 1.0}), ("seed_session", {})])),
        (
            "the reference as an argument",
            finished_reply([("email_send_email", {"body": json.dumps(row["ground_truth"])})]),
        ),
        (
            "deletes everything",
            finished_reply([("email_delete_email", {"email_id": f"{n:08}"}) for n in range(2000, 2160)]),
        ),
        ("more calls than allowed", finished_reply([*calls, *([("email_search_emails", {})] * 1001)])),
        ("right, then undone and redone wrongly", finished_reply([*calls, _SENT, _SENT])),
    ]
