"""Tools for analytics, project management and customers."""

from collections import Counter
from collections.abc import Callable

from resources_servers.workplace_assistant.office import Office
from resources_servers.workplace_assistant.tool import (
    Refused,
    date,
    email_address,
    field_of,
    made,
    one_of,
    row_of,
    shown,
)
from resources_servers.workplace_assistant.world import BOARDS, LISTS, PRODUCTS, SOURCES, STATUSES, Row

PLOTTED = ("total_visits", "session_duration_seconds", "user_engaged", *SOURCES)
PLOTS = ("bar", "line", "scatter", "histogram")


def _visits(office: Office, time_min: str, time_max: str) -> list[Row]:
    low = date(time_min, "time_min") if time_min else ""
    high = date(time_max, "time_max") if time_max else "9"
    return [row for row in office.tables["visits"].values() if low <= row["date_of_visit"] <= high]


def _per_day(rows: list[Row], counts: Callable[[Row], bool]) -> dict[str, int]:
    days = Counter({row["date_of_visit"]: 0 for row in rows})
    days.update(row["date_of_visit"] for row in rows if counts(row))
    return dict(sorted(days.items()))


@made("analytics")
def get_visitor_information_by_id(office: Office, visitor_id: str) -> object:
    """Read what is known about one visit to the website."""
    return row_of(office, "visits", visitor_id, "visitor")


@made("analytics")
def engaged_users_count(office: Office, time_min: str = "", time_max: str = "") -> object:
    """Count the engaged visitors of the website on each day, both ends included."""
    return _per_day(_visits(office, time_min, time_max), lambda row: row["user_engaged"] == "true")


@made("analytics")
def traffic_source_count(office: Office, time_min: str = "", time_max: str = "", traffic_source: str = "") -> object:
    """Count the visits of each day that came from direct, referral, search engine or social media; all when unnamed."""
    source = one_of(traffic_source, SOURCES, "traffic_source") if traffic_source else ""
    return _per_day(_visits(office, time_min, time_max), lambda row: source in ("", row["traffic_source"]))


@made("analytics")
def total_visits_count(office: Office, time_min: str = "", time_max: str = "") -> object:
    """Count the visits of the website on each day, both ends included."""
    return _per_day(_visits(office, time_min, time_max), lambda _: True)


@made("analytics")
def get_average_session_duration(office: Office, time_min: str = "", time_max: str = "") -> object:
    """The average length of the visits of each day, in seconds."""
    lengths: dict[str, list[int]] = {}
    for row in _visits(office, time_min, time_max):
        lengths.setdefault(row["date_of_visit"], []).append(int(row["session_duration_seconds"]))
    return {day: round(sum(seconds) / len(seconds), 2) for day, seconds in sorted(lengths.items())}


@made("analytics", changes=True)
def create_plot(office: Office, time_min: str, time_max: str, value_to_plot: str, plot_type: str) -> object:
    """Draw a value (total_visits, session_duration_seconds, user_engaged or a traffic source) over days.

    The plot is a bar, line, scatter or histogram.
    """
    row = {
        "time_min": date(time_min, "time_min"),
        "time_max": date(time_max, "time_max"),
        "value_to_plot": one_of(value_to_plot, PLOTTED, "value_to_plot"),
        "plot_type": one_of(plot_type, PLOTS, "plot_type"),
    }
    if row["time_min"] > row["time_max"]:
        raise Refused("time_min lies behind time_max")
    path = "plots/" + "_".join(row.values()).replace(" ", "_") + ".png"
    office.tables["plots"][path] = row
    return {"file_path": path}


@made("project_management")
def get_task_information_by_id(office: Office, task_id: str, field: str) -> object:
    """Read one field of a task: task_name, assigned_to_email, list_name, due_date or board."""
    return {field: field_of(row_of(office, "tasks", task_id, "task"), field)}


@made("project_management")
def search_tasks(
    office: Office,
    task_name: str = "",
    assigned_to_email: str = "",
    list_name: str = "",
    due_date: str = "",
    board: str = "",
) -> object:
    """Find tasks whose fields contain all the given texts."""
    asked = {
        "task_name": task_name,
        "assigned_to_email": assigned_to_email,
        "list_name": list_name,
        "due_date": due_date,
        "board": board,
    }
    return shown(_matching(office, "tasks", "task_id", asked), "tasks")


def _matching(office: Office, table: str, key: str, asked: dict[str, str]) -> list[Row]:
    return [
        {key: row_id, **row}
        for row_id, row in office.tables[table].items()
        if all(text.lower() in row[column].lower() for column, text in asked.items())
    ]


@made("project_management", changes=True)
def create_task(
    office: Office, task_name: str, assigned_to_email: str, list_name: str, due_date: str, board: str
) -> object:
    """Create a task. Lists: Backlog, In Progress, In Review, Completed. Boards: Back end, Front end, Design."""
    row = {
        "task_name": task_name,
        "assigned_to_email": email_address(assigned_to_email, "assigned_to_email"),
        "list_name": one_of(list_name, LISTS, "list_name"),
        "due_date": date(due_date, "due_date"),
        "board": one_of(board, BOARDS, "board"),
    }
    return {"task_id": office.add("tasks", row)}


@made("project_management", changes=True)
def delete_task(office: Office, task_id: str) -> object:
    """Delete a task."""
    row_of(office, "tasks", task_id, "task")
    del office.tables["tasks"][task_id]
    return "The task was deleted."


@made("project_management", changes=True)
def update_task(office: Office, task_id: str, field: str, new_value: str) -> object:
    """Change one field of a task: task_name, assigned_to_email, list_name, due_date or board."""
    field_of(row_of(office, "tasks", task_id, "task"), field)
    office.change("tasks", task_id, field, _checked(field, new_value))
    return "The task was updated."


def _checked(field: str, value: str) -> str:
    """A value that the field of a task or a customer can have."""
    if not value.strip():
        raise Refused("new_value is empty")
    allowed = {"list_name": LISTS, "board": BOARDS, "status": STATUSES, "product_interest": PRODUCTS}
    if field in allowed:
        return one_of(value, allowed[field], field)
    if field in ("due_date", "last_contact_date", "follow_up_by"):
        return date(value, field)
    return email_address(value, field) if field.endswith("_email") else value


@made("customer_relationship_manager")
def search_customers(
    office: Office,
    customer_name: str = "",
    customer_email: str = "",
    product_interest: str = "",
    status: str = "",
    assigned_to_email: str = "",
    last_contact_date_min: str = "",
    last_contact_date_max: str = "",
    follow_up_by_min: str = "",
    follow_up_by_max: str = "",
) -> object:
    """Find customers whose fields contain all the given texts and whose dates lie between the given ones."""
    asked = {
        "customer_name": customer_name,
        "customer_email": customer_email,
        "product_interest": product_interest,
        "status": status,
        "assigned_to_email": assigned_to_email,
    }
    contact = (last_contact_date_min, last_contact_date_max)
    follow_up = (follow_up_by_min, follow_up_by_max)
    found = [
        row
        for row in _matching(office, "customers", "customer_id", asked)
        if _between(row["last_contact_date"], *contact) and _between(row["follow_up_by"], *follow_up)
    ]
    return shown(found, "customers")


def _between(day: str, low: str, high: str) -> bool:
    return (not low or date(low, "date") <= day) and (not high or day <= date(high, "date"))


@made("customer_relationship_manager", changes=True)
def update_customer(office: Office, customer_id: str, field: str, new_value: str) -> object:
    """Change one field of a customer.

    Fields: customer_name, customer_email, customer_phone, assigned_to_email, last_contact_date, follow_up_by, notes,
    product_interest (Software, Hardware, Services, Consulting, Training) and status (Lead, Qualified, Proposal, Won,
    Lost).
    """
    field_of(row_of(office, "customers", customer_id, "customer"), field)
    office.change("customers", customer_id, field, _checked(field, new_value))
    return "The customer was updated."


@made("customer_relationship_manager", changes=True)
def add_customer(
    office: Office,
    customer_name: str,
    assigned_to_email: str,
    status: str,
    customer_email: str = "",
    customer_phone: str = "",
    last_contact_date: str = "",
    product_interest: str = "",
    notes: str = "",
    follow_up_by: str = "",
) -> object:
    """Add a customer. Status: Lead, Qualified, Proposal, Won, Lost."""
    given = {
        "customer_email": customer_email,
        "assigned_to_email": assigned_to_email,
        "last_contact_date": last_contact_date,
        "follow_up_by": follow_up_by,
        "product_interest": product_interest,
        "status": status,
    }
    checked = {field: _checked(field, value) if value else "" for field, value in given.items()}
    row = {"customer_name": customer_name, "customer_phone": customer_phone, "notes": notes, **checked}
    return {"customer_id": office.add("customers", row)}


@made("customer_relationship_manager", changes=True)
def delete_customer(office: Office, customer_id: str) -> object:
    """Delete a customer."""
    row_of(office, "customers", customer_id, "customer")
    del office.tables["customers"][customer_id]
    return "The customer was deleted."


TOOLS = (
    get_visitor_information_by_id,
    engaged_users_count,
    traffic_source_count,
    total_visits_count,
    get_average_session_duration,
    create_plot,
    get_task_information_by_id,
    search_tasks,
    create_task,
    delete_task,
    update_task,
    search_customers,
    update_customer,
    add_customer,
    delete_customer,
)
