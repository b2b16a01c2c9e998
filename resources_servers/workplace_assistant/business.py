"""Tools for analytics, project management and customers."""

from collections import Counter
from collections.abc import Callable

from resources_servers.workplace_assistant.office import Office
from resources_servers.workplace_assistant.tool import (
    ToolError,
    as_tool,
    find_row,
    format_results,
    parse_choice,
    parse_date,
    parse_email_address,
    read_field,
)
from resources_servers.workplace_assistant.world import BOARDS, LISTS, PRODUCTS, SOURCES, STATUSES, Row

PLOT_VALUES = ("total_visits", "session_duration_seconds", "user_engaged", *SOURCES)
PLOT_TYPES = ("bar", "line", "scatter", "histogram")


def _visits(office: Office, time_min: str, time_max: str) -> list[Row]:
    low = parse_date(time_min, "time_min") if time_min else ""
    high = parse_date(time_max, "time_max") if time_max else "9"
    return [row for row in office.tables["visits"].values() if low <= row["date_of_visit"] <= high]


def _per_day(rows: list[Row], counts: Callable[[Row], bool]) -> dict[str, int]:
    days = Counter({row["date_of_visit"]: 0 for row in rows})
    days.update(row["date_of_visit"] for row in rows if counts(row))
    return dict(sorted(days.items()))


@as_tool("analytics")
def get_visitor_information_by_id(office: Office, visitor_id: str) -> object:
    """Read what is known about one visit to the website."""
    return find_row(office, "visits", visitor_id, "visitor")


@as_tool("analytics")
def engaged_users_count(office: Office, time_min: str = "", time_max: str = "") -> object:
    """Count the engaged visitors of the website on each day, both ends included."""
    return _per_day(_visits(office, time_min, time_max), lambda row: row["user_engaged"] == "true")


@as_tool("analytics")
def traffic_source_count(office: Office, time_min: str = "", time_max: str = "", traffic_source: str = "") -> object:
    """Count the visits of each day that came from direct, referral, search engine or social media; all when unnamed."""
    source = parse_choice(traffic_source, SOURCES, "traffic_source") if traffic_source else ""
    return _per_day(_visits(office, time_min, time_max), lambda row: source in ("", row["traffic_source"]))


@as_tool("analytics")
def total_visits_count(office: Office, time_min: str = "", time_max: str = "") -> object:
    """Count the visits of the website on each day, both ends included."""
    return _per_day(_visits(office, time_min, time_max), lambda _: True)


@as_tool("analytics")
def get_average_session_duration(office: Office, time_min: str = "", time_max: str = "") -> object:
    """The average length of the visits of each day, in seconds."""
    lengths: dict[str, list[int]] = {}
    for row in _visits(office, time_min, time_max):
        lengths.setdefault(row["date_of_visit"], []).append(int(row["session_duration_seconds"]))
    return {day: round(sum(seconds) / len(seconds), 2) for day, seconds in sorted(lengths.items())}


@as_tool("analytics", changes=True)
def create_plot(office: Office, time_min: str, time_max: str, value_to_plot: str, plot_type: str) -> object:
    """Draw a value (total_visits, session_duration_seconds, user_engaged or a traffic source) over days.

    The plot is a bar, line, scatter or histogram.
    """
    row = {
        "time_min": parse_date(time_min, "time_min"),
        "time_max": parse_date(time_max, "time_max"),
        "value_to_plot": parse_choice(value_to_plot, PLOT_VALUES, "value_to_plot"),
        "plot_type": parse_choice(plot_type, PLOT_TYPES, "plot_type"),
    }
    if row["time_min"] > row["time_max"]:
        raise ToolError("time_min lies behind time_max")
    path = "plots/" + "_".join(row.values()).replace(" ", "_") + ".png"
    office.tables["plots"][path] = row
    return {"file_path": path}


@as_tool("project_management")
def get_task_information_by_id(office: Office, task_id: str, field: str) -> object:
    """Read one field of a task: task_name, assigned_to_email, list_name, due_date or board."""
    return {field: read_field(find_row(office, "tasks", task_id, "task"), field)}


@as_tool("project_management")
def search_tasks(
    office: Office,
    task_name: str = "",
    assigned_to_email: str = "",
    list_name: str = "",
    due_date: str = "",
    board: str = "",
) -> object:
    """Find tasks whose fields contain all the given texts."""
    criteria = {
        "task_name": task_name,
        "assigned_to_email": assigned_to_email,
        "list_name": list_name,
        "due_date": due_date,
        "board": board,
    }
    return format_results(_find_rows(office, "tasks", "task_id", criteria), "tasks")


def _find_rows(office: Office, table: str, key: str, criteria: dict[str, str]) -> list[Row]:
    return [
        {key: row_id, **row}
        for row_id, row in office.tables[table].items()
        if all(text.lower() in row[column].lower() for column, text in criteria.items())
    ]


@as_tool("project_management", changes=True)
def create_task(
    office: Office, task_name: str, assigned_to_email: str, list_name: str, due_date: str, board: str
) -> object:
    """Create a task. Lists: Backlog, In Progress, In Review, Completed. Boards: Back end, Front end, Design."""
    row = {
        "task_name": task_name,
        "assigned_to_email": parse_email_address(assigned_to_email, "assigned_to_email"),
        "list_name": parse_choice(list_name, LISTS, "list_name"),
        "due_date": parse_date(due_date, "due_date"),
        "board": parse_choice(board, BOARDS, "board"),
    }
    return {"task_id": office.add("tasks", row)}


@as_tool("project_management", changes=True)
def delete_task(office: Office, task_id: str) -> object:
    """Delete a task."""
    find_row(office, "tasks", task_id, "task")
    del office.tables["tasks"][task_id]
    return "The task was deleted."


@as_tool("project_management", changes=True)
def update_task(office: Office, task_id: str, field: str, new_value: str) -> object:
    """Change one field of a task: task_name, assigned_to_email, list_name, due_date or board."""
    read_field(find_row(office, "tasks", task_id, "task"), field)
    office.change("tasks", task_id, field, _parse_field(field, new_value))
    return "The task was updated."


def _parse_field(field: str, value: str) -> str:
    """Return a value in the form that the field of a task or customer has."""
    if not value.strip():
        raise ToolError("new_value is empty")
    allowed = {"list_name": LISTS, "board": BOARDS, "status": STATUSES, "product_interest": PRODUCTS}
    if field in allowed:
        return parse_choice(value, allowed[field], field)
    if field in ("due_date", "last_contact_date", "follow_up_by"):
        return parse_date(value, field)
    return parse_email_address(value, field) if field.endswith("_email") else value


@as_tool("customer_relationship_manager")
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
    criteria = {
        "customer_name": customer_name,
        "customer_email": customer_email,
        "product_interest": product_interest,
        "status": status,
        "assigned_to_email": assigned_to_email,
    }
    contact = (last_contact_date_min, last_contact_date_max)
    follow_up = (follow_up_by_min, follow_up_by_max)
    customers = [
        row
        for row in _find_rows(office, "customers", "customer_id", criteria)
        if _between(row["last_contact_date"], *contact) and _between(row["follow_up_by"], *follow_up)
    ]
    return format_results(customers, "customers")


def _between(day: str, low: str, high: str) -> bool:
    return (not low or parse_date(low, "date") <= day) and (not high or day <= parse_date(high, "date"))


@as_tool("customer_relationship_manager", changes=True)
def update_customer(office: Office, customer_id: str, field: str, new_value: str) -> object:
    """Change one field of a customer.

    Fields: customer_name, customer_email, customer_phone, assigned_to_email, last_contact_date, follow_up_by, notes,
    product_interest (Software, Hardware, Services, Consulting, Training) and status (Lead, Qualified, Proposal, Won,
    Lost).
    """
    read_field(find_row(office, "customers", customer_id, "customer"), field)
    office.change("customers", customer_id, field, _parse_field(field, new_value))
    return "The customer was updated."


@as_tool("customer_relationship_manager", changes=True)
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
    fields = {
        "customer_email": customer_email,
        "assigned_to_email": assigned_to_email,
        "last_contact_date": last_contact_date,
        "follow_up_by": follow_up_by,
        "product_interest": product_interest,
        "status": status,
    }
    parsed = {field: _parse_field(field, value) if value else "" for field, value in fields.items()}
    row = {"customer_name": customer_name, "customer_phone": customer_phone, "notes": notes, **parsed}
    return {"customer_id": office.add("customers", row)}


@as_tool("customer_relationship_manager", changes=True)
def delete_customer(office: Office, customer_id: str) -> object:
    """Delete a customer."""
    find_row(office, "customers", customer_id, "customer")
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
