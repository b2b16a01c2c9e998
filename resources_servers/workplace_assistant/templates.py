"""Templates of tasks: each draws a task from the tables and returns its instruction and the calls that solve it."""

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from resources_servers.workplace_assistant.world import (
    BOARDS,
    LISTS,
    NOW,
    PEOPLE,
    PRODUCTS,
    SOURCES,
    STATUSES,
    Row,
    address,
    build_tables,
    stamp,
)

Call = tuple[str, dict[str, Any]]
Task = tuple[str, list[Call]]
"""An instruction and the calls that solve it."""
Template = Callable[[random.Random], Task]

TABLES = build_tables()
NEWS = (
    "The figures are ready.",
    "The office is closed on Friday.",
    "Lunch is at noon.",
    "The new laptops have arrived.",
    "Please bring your badge tomorrow.",
)
TOPICS = ("Update", "Reminder", "Good news", "Question", "Invitation")


def _name(email: str) -> str:
    return next(person for person in PEOPLE if address(person) == email)


def _day(text: str) -> str:
    return datetime.strptime(text[:10], "%Y-%m-%d").strftime("%Y-%m-%d")


def _latest_email(draw: random.Random) -> tuple[str, Row]:
    """Return the latest email of a random sender, with its id."""
    sender = draw.choice(sorted({row["address"] for row in TABLES["emails"].values()}))
    mails = [(row_id, row) for row_id, row in TABLES["emails"].items() if row["address"] == sender]
    return max(mails, key=lambda pair: pair[1]["sent_datetime"])


def _upcoming_event(draw: random.Random) -> tuple[str, Row]:
    """Return an event after today, with its id; its name is unique on its day."""
    return draw.choice([(i, row) for i, row in TABLES["calendar"].items() if row["event_start"] > "2026-03-13"])


def _task(draw: random.Random) -> tuple[str, Row]:
    return draw.choice(list(TABLES["tasks"].items()))


def _customer(draw: random.Random) -> tuple[str, Row]:
    return draw.choice(list(TABLES["customers"].items()))


def _other(draw: random.Random, allowed: tuple[str, ...], now: str) -> str:
    return draw.choice([value for value in allowed if value != now])


def _free_start(draw: random.Random) -> datetime:
    date = NOW.replace(hour=0) + timedelta(days=draw.choice((1, 4, 5, 6, 7, 8)))
    return date + timedelta(hours=draw.randint(17, 19))


def _period(draw: random.Random) -> tuple[str, str]:
    low = NOW - timedelta(days=draw.randint(20, 50))
    return low.strftime("%Y-%m-%d"), (low + timedelta(days=draw.randint(5, 18))).strftime("%Y-%m-%d")


def send(draw: random.Random) -> Task:
    person, topic, body = draw.choice(PEOPLE), draw.choice(TOPICS), draw.choice(NEWS)
    call = ("email_send_email", {"recipient": address(person), "subject": topic, "body": body})
    return f"Send an email to {person} with the subject '{topic}' and the body '{body}'", [call]


def delete_latest(draw: random.Random) -> Task:
    row_id, row = _latest_email(draw)
    return f"Delete my latest email from {_name(row['address'])}.", [("email_delete_email", {"email_id": row_id})]


def forward_latest(draw: random.Random) -> Task:
    row_id, row = _latest_email(draw)
    person = draw.choice(PEOPLE)
    call = ("email_forward_email", {"email_id": row_id, "recipient": address(person)})
    return f"Forward the latest email from {_name(row['address'])} to {person}.", [call]


def reply_latest(draw: random.Random) -> Task:
    row_id, row = _latest_email(draw)
    body = draw.choice(NEWS)
    call = ("email_reply_email", {"email_id": row_id, "body": body})
    return f"Reply to the latest email from {_name(row['address'])} with '{body}'", [call]


def forward_and_delete(draw: random.Random) -> Task:
    row_id, row = _latest_email(draw)
    person = draw.choice(PEOPLE)
    calls: list[Call] = [
        ("email_forward_email", {"email_id": row_id, "recipient": address(person)}),
        ("email_delete_email", {"email_id": row_id}),
    ]
    return f"Forward the latest email from {_name(row['address'])} to {person}, then delete it.", calls


def meet(draw: random.Random) -> Task:
    person, start, length = draw.choice(PEOPLE), _free_start(draw), draw.choice((30, 45, 60))
    name = draw.choice(("Catch-up", "Handover", "Planning", "Demo"))
    event = {
        "event_name": name,
        "participant_email": address(person),
        "event_start": stamp(start),
        "duration": str(length),
    }
    instruction = f"Book '{name}' with {person} on {start:%Y-%m-%d} at {start:%H:%M}, {length} minutes."
    return instruction, [("calendar_create_event", event)]


def cancel(draw: random.Random) -> Task:
    row_id, row = _upcoming_event(draw)
    instruction = f"Cancel '{row['event_name']}' on {_day(row['event_start'])}."
    return instruction, [("calendar_delete_event", {"event_id": row_id})]


def cancel_day(draw: random.Random) -> Task:
    day = _day(_upcoming_event(draw)[1]["event_start"])
    event_ids = [row_id for row_id, row in TABLES["calendar"].items() if row["event_start"].startswith(day)]
    calls: list[Call] = [("calendar_delete_event", {"event_id": row_id}) for row_id in event_ids]
    return f"I am away on {day}. Cancel everything in my calendar on that day.", calls


def move(draw: random.Random) -> Task:
    row_id, row = _upcoming_event(draw)
    start = f"{_day(row['event_start'])} {draw.randint(17, 19)}:00:00"
    call = ("calendar_update_event", {"event_id": row_id, "field": "event_start", "new_value": start})
    return f"Move '{row['event_name']}' on {start[:10]} to {start[11:16]} on the same day.", [call]


def lengthen(draw: random.Random) -> Task:
    row_id, row = _upcoming_event(draw)
    length = draw.choice((75, 90, 120))
    call = ("calendar_update_event", {"event_id": row_id, "field": "duration", "new_value": str(length)})
    return f"Make '{row['event_name']}' on {_day(row['event_start'])} {length} minutes long.", [call]


def rename(draw: random.Random) -> Task:
    row_id, row = _upcoming_event(draw)
    name = draw.choice(("Working session", "Open questions", "Quick sync"))
    call = ("calendar_update_event", {"event_id": row_id, "field": "event_name", "new_value": name})
    return f"Rename '{row['event_name']}' on {_day(row['event_start'])} to '{name}'.", [call]


def plot(draw: random.Random) -> Task:
    low, high = _period(draw)
    value = draw.choice(("total_visits", "session_duration_seconds", "user_engaged", *SOURCES))
    kind = draw.choice(("bar", "line", "scatter", "histogram"))
    words = value.replace("_", " ")
    call = ("analytics_create_plot", {"time_min": low, "time_max": high, "value_to_plot": value, "plot_type": kind})
    return f"Make a {kind} plot of {words} from {low} to {high}.", [call]


def plot_if_busy(draw: random.Random) -> Task:
    low, high = _period(draw)
    source = draw.choice(SOURCES)
    visits = [row for row in TABLES["visits"].values() if low <= row["date_of_visit"] <= high]
    count = sum(row["traffic_source"] == source for row in visits)
    instruction = (
        f"If more than {max(count - draw.randint(1, 5), 0)} visits came from {source} between {low} and {high}, both "
        f"days included, make a line plot of them for these days; if not, make a bar plot of total visits."
    )
    call = ("analytics_create_plot", {"time_min": low, "time_max": high, "value_to_plot": source, "plot_type": "line"})
    return instruction, [call]


def new_task(draw: random.Random) -> Task:
    person, board, column = draw.choice(PEOPLE), draw.choice(BOARDS), draw.choice(LISTS[:2])
    due = (NOW + timedelta(days=draw.randint(3, 20))).strftime("%Y-%m-%d")
    name = draw.choice(("Update changelog", "Upgrade database", "Check licences", "Tidy backlog"))
    task = {
        "task_name": name,
        "assigned_to_email": address(person),
        "list_name": column,
        "due_date": due,
        "board": board,
    }
    instruction = f"Create the task '{name}' for {person} on the {board} board, in {column}, due {due}."
    return instruction, [("project_management_create_task", task)]


def move_task(draw: random.Random) -> Task:
    row_id, row = _task(draw)
    column = _other(draw, LISTS, row["list_name"])
    call = ("project_management_update_task", {"task_id": row_id, "field": "list_name", "new_value": column})
    return f"Move the task '{row['task_name']}' to {column}.", [call]


def hand_over_tasks(draw: random.Random) -> Task:
    _, row = _task(draw)
    task_ids = [
        row_id
        for row_id, task in TABLES["tasks"].items()
        if task["assigned_to_email"] == row["assigned_to_email"] and task["board"] == row["board"]
    ]
    person = _other(draw, PEOPLE, _name(row["assigned_to_email"]))
    calls: list[Call] = [
        (
            "project_management_update_task",
            {"task_id": row_id, "field": "assigned_to_email", "new_value": address(person)},
        )
        for row_id in task_ids
    ]
    owner = _name(row["assigned_to_email"])
    return f"Give all of {owner}'s tasks on the {row['board']} board, whatever their list, to {person}.", calls


def drop_task(draw: random.Random) -> Task:
    row_id, row = _task(draw)
    return f"Delete the task '{row['task_name']}'.", [("project_management_delete_task", {"task_id": row_id})]


def postpone(draw: random.Random) -> Task:
    row_id, row = _task(draw)
    due = (NOW + timedelta(days=draw.randint(40, 60))).strftime("%Y-%m-%d")
    call = ("project_management_update_task", {"task_id": row_id, "field": "due_date", "new_value": due})
    return f"Set the due date of the task '{row['task_name']}' to {due}.", [call]


def customer_status(draw: random.Random) -> Task:
    row_id, row = _customer(draw)
    status = _other(draw, STATUSES, row["status"])
    call = (
        "customer_relationship_manager_update_customer",
        {"customer_id": row_id, "field": "status", "new_value": status},
    )
    return f"Set the status of the customer {row['customer_name']} to {status}.", [call]


def new_customer(draw: random.Random) -> Task:
    person, product, status = draw.choice(PEOPLE), draw.choice(PRODUCTS), draw.choice(STATUSES[:3])
    name = draw.choice(("Ivy Quinn", "Theo Rossi", "Uma Sato", "Vic Turner"))
    customer = {
        "customer_name": name,
        "assigned_to_email": address(person),
        "status": status,
        "product_interest": product,
    }
    instruction = (
        f"Add the customer {name}, {status}, interested in {product}, assigned to {person}. Nothing else is known."
    )
    return instruction, [("customer_relationship_manager_add_customer", customer)]


def drop_customer(draw: random.Random) -> Task:
    row_id, row = _customer(draw)
    call = ("customer_relationship_manager_delete_customer", {"customer_id": row_id})
    return f"Delete the customer {row['customer_name']}.", [call]


def hand_over_customers(draw: random.Random) -> Task:
    _, row = _customer(draw)
    customer_ids = [
        row_id
        for row_id, customer in TABLES["customers"].items()
        if all(customer[column] == row[column] for column in ("assigned_to_email", "status"))
    ]
    person = _other(draw, PEOPLE, _name(row["assigned_to_email"]))
    calls: list[Call] = [
        (
            "customer_relationship_manager_update_customer",
            {"customer_id": row_id, "field": "assigned_to_email", "new_value": address(person)},
        )
        for row_id in customer_ids
    ]
    owner = _name(row["assigned_to_email"])
    return f"Assign every customer of {owner} with status {row['status']} to {person}.", calls


def mark_won_and_notify(draw: random.Random) -> Task:
    row_id, row = _customer(draw)
    while row["status"] == "Won":
        row_id, row = _customer(draw)
    body = f"{row['customer_name']} signed."
    calls: list[Call] = [
        (
            "customer_relationship_manager_update_customer",
            {"customer_id": row_id, "field": "status", "new_value": "Won"},
        ),
        ("email_send_email", {"recipient": row["assigned_to_email"], "subject": "Won", "body": body}),
    ]
    instruction = (
        f"The customer {row['customer_name']} signed: set the status to Won, and send the colleague who is assigned to "
        f"them an email with the subject 'Won' and the body '{body}'"
    )
    return instruction, calls


def complete_and_notify(draw: random.Random) -> Task:
    row_id, row = _task(draw)
    while row["list_name"] == "Completed":
        row_id, row = _task(draw)
    body = f"'{row['task_name']}' is completed."
    calls: list[Call] = [
        ("project_management_update_task", {"task_id": row_id, "field": "list_name", "new_value": "Completed"}),
        ("email_send_email", {"recipient": row["assigned_to_email"], "subject": "Completed", "body": body}),
    ]
    instruction = (
        f"Move the task '{row['task_name']}' to Completed and send its assignee an email with the subject 'Completed' "
        f'and the body "{body}"'
    )
    return instruction, calls


def cancel_and_notify(draw: random.Random) -> Task:
    row_id, row = _upcoming_event(draw)
    body = "Sorry, I cannot make it."
    calls: list[Call] = [
        ("calendar_delete_event", {"event_id": row_id}),
        (
            "email_send_email",
            {"recipient": row["participant_email"], "subject": row["event_name"], "body": body},
        ),
    ]
    instruction = (
        f"Cancel '{row['event_name']}' on {_day(row['event_start'])} and send its participant an email with the "
        f"event's name as subject and the body '{body}'"
    )
    return instruction, calls


TEMPLATES: dict[str, tuple[Template, ...]] = {
    "email": (send, delete_latest, forward_latest, reply_latest, forward_and_delete),
    "calendar": (meet, cancel, cancel_day, move, lengthen, rename),
    "analytics": (plot, plot_if_busy),
    "project_management": (new_task, move_task, hand_over_tasks, drop_task, postpone),
    "customer_relationship_manager": (customer_status, new_customer, drop_customer, hand_over_customers),
    "multi_domain": (mark_won_and_notify, complete_and_notify, cancel_and_notify),
}
