"""Tools for the directory, email and the calendar."""

from resources_servers.workplace_assistant.office import Office
from resources_servers.workplace_assistant.tool import (
    ToolError,
    as_tool,
    find_row,
    format_results,
    parse_datetime,
    parse_email_address,
    parse_whole_number,
    read_field,
)
from resources_servers.workplace_assistant.world import NOW, PEOPLE, address, stamp


@as_tool("company_directory")
def find_email_address(office: Office, name: str) -> object:  # noqa: ARG001
    """Find the email addresses of colleagues whose name contains the given text."""
    addresses = [address(person) for person in PEOPLE if name.lower() in person.lower()]
    return addresses or "No colleague has this name."


@as_tool("email")
def get_email_information_by_id(office: Office, email_id: str, field: str) -> object:
    """Read one field of an email: folder, address, subject, sent_datetime or body."""
    return {field: read_field(find_row(office, "emails", email_id, "email"), field)}


@as_tool("email")
def search_emails(office: Office, query: str = "", date_min: str = "", date_max: str = "") -> object:
    """Find emails whose subject, body or sender contains every word of the query, the latest first.

    date_min and date_max limit when they were sent.
    """
    words = query.lower().split()
    low = parse_datetime(date_min, "date_min") if date_min else ""
    high = parse_datetime(date_max, "date_max") if date_max else "9"
    emails = []
    for row_id, row in office.tables["emails"].items():
        text = f"{row['subject']} {row['body']} {row['address']}".lower()
        if all(word in text for word in words) and low <= row["sent_datetime"] <= high:
            emails.append({"email_id": row_id, **row})
    return format_results(sorted(emails, key=lambda row: row["sent_datetime"], reverse=True), "emails")


@as_tool("email", changes=True)
def send_email(office: Office, recipient: str, subject: str, body: str) -> object:
    """Send an email."""
    _send(office, parse_email_address(recipient, "recipient"), subject, body)
    return "The email was sent."


@as_tool("email", changes=True)
def delete_email(office: Office, email_id: str) -> object:
    """Delete an email."""
    find_row(office, "emails", email_id, "email")
    del office.tables["emails"][email_id]
    return "The email was deleted."


@as_tool("email", changes=True)
def forward_email(office: Office, email_id: str, recipient: str) -> object:
    """Forward an email to somebody."""
    row = find_row(office, "emails", email_id, "email")
    _send(office, parse_email_address(recipient, "recipient"), f"FW: {row['subject']}", row["body"])
    return "The email was forwarded."


@as_tool("email", changes=True)
def reply_email(office: Office, email_id: str, body: str) -> object:
    """Reply to an email."""
    row = find_row(office, "emails", email_id, "email")
    _send(office, row["address"], f"RE: {row['subject']}", body)
    return "The reply was sent."


def _send(office: Office, recipient: str, subject: str, body: str) -> None:
    email = {"folder": "outbox", "address": recipient, "subject": subject, "sent_datetime": stamp(NOW), "body": body}
    office.add("emails", email)


@as_tool("calendar")
def get_event_information_by_id(office: Office, event_id: str, field: str) -> object:
    """Read one field of a calendar event: event_name, participant_email, event_start or duration."""
    return {field: read_field(find_row(office, "calendar", event_id, "event"), field)}


@as_tool("calendar")
def search_events(office: Office, query: str = "", time_min: str = "", time_max: str = "") -> object:
    """Find events whose name or participant contains the query, the earliest first.

    time_min and time_max limit when they start.
    """
    low = parse_datetime(time_min, "time_min") if time_min else ""
    high = parse_datetime(time_max, "time_max") if time_max else "9"
    events = [
        {"event_id": row_id, **row}
        for row_id, row in office.tables["calendar"].items()
        if query.lower() in f"{row['event_name']} {row['participant_email']}".lower()
        and low <= row["event_start"] <= high
    ]
    return format_results(sorted(events, key=lambda row: row["event_start"]), "events")


@as_tool("calendar", changes=True)
def create_event(office: Office, event_name: str, participant_email: str, event_start: str, duration: str) -> object:
    """Put an event into the calendar. The duration is in minutes."""
    row = {
        "event_name": event_name,
        "participant_email": parse_email_address(participant_email, "participant_email"),
        "event_start": parse_datetime(event_start, "event_start"),
        "duration": parse_whole_number(duration, "duration"),
    }
    return {"event_id": office.add("calendar", row)}


@as_tool("calendar", changes=True)
def delete_event(office: Office, event_id: str) -> object:
    """Delete an event from the calendar."""
    find_row(office, "calendar", event_id, "event")
    del office.tables["calendar"][event_id]
    return "The event was deleted."


@as_tool("calendar", changes=True)
def update_event(office: Office, event_id: str, field: str, new_value: str) -> object:
    """Change one field of an event: event_name, participant_email, event_start or duration."""
    read_field(find_row(office, "calendar", event_id, "event"), field)
    parsers = {"participant_email": parse_email_address, "event_start": parse_datetime, "duration": parse_whole_number}
    if not new_value.strip():
        raise ToolError("new_value is empty")
    value = parsers[field](new_value, "new_value") if field in parsers else new_value
    office.change("calendar", event_id, field, value)
    return "The event was updated."


TOOLS = (
    find_email_address,
    get_email_information_by_id,
    search_emails,
    send_email,
    delete_email,
    forward_email,
    reply_email,
    get_event_information_by_id,
    search_events,
    create_event,
    delete_event,
    update_event,
)
