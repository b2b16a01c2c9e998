"""Tools for the directory, email and the calendar."""

from resources_servers.workplace_assistant.office import Office
from resources_servers.workplace_assistant.tool import (
    Refused,
    email_address,
    field_of,
    made,
    moment,
    row_of,
    shown,
    whole_number,
)
from resources_servers.workplace_assistant.world import NOW, PEOPLE, address, stamp


@made("company_directory")
def find_email_address(office: Office, name: str) -> object:  # noqa: ARG001
    """Find the email addresses of colleagues whose name contains the given text."""
    found = [address(person) for person in PEOPLE if name.lower() in person.lower()]
    return found or "No colleague has this name."


@made("email")
def get_email_information_by_id(office: Office, email_id: str, field: str) -> object:
    """Read one field of an email: folder, address, subject, sent_datetime or body."""
    return {field: field_of(row_of(office, "emails", email_id, "email"), field)}


@made("email")
def search_emails(office: Office, query: str = "", date_min: str = "", date_max: str = "") -> object:
    """Find emails whose subject, body or sender contains every word of the query, the latest first.

    date_min and date_max limit when they were sent.
    """
    words = query.lower().split()
    low = moment(date_min, "date_min") if date_min else ""
    high = moment(date_max, "date_max") if date_max else "9"
    found = []
    for row_id, row in office.tables["emails"].items():
        text = f"{row['subject']} {row['body']} {row['address']}".lower()
        if all(word in text for word in words) and low <= row["sent_datetime"] <= high:
            found.append({"email_id": row_id, **row})
    return shown(sorted(found, key=lambda row: row["sent_datetime"], reverse=True), "emails")


@made("email", changes=True)
def send_email(office: Office, recipient: str, subject: str, body: str) -> object:
    """Send an email."""
    _send(office, email_address(recipient, "recipient"), subject, body)
    return "The email was sent."


@made("email", changes=True)
def delete_email(office: Office, email_id: str) -> object:
    """Delete an email."""
    row_of(office, "emails", email_id, "email")
    del office.tables["emails"][email_id]
    return "The email was deleted."


@made("email", changes=True)
def forward_email(office: Office, email_id: str, recipient: str) -> object:
    """Forward an email to somebody."""
    row = row_of(office, "emails", email_id, "email")
    _send(office, email_address(recipient, "recipient"), f"FW: {row['subject']}", row["body"])
    return "The email was forwarded."


@made("email", changes=True)
def reply_email(office: Office, email_id: str, body: str) -> object:
    """Reply to an email."""
    row = row_of(office, "emails", email_id, "email")
    _send(office, row["address"], f"RE: {row['subject']}", body)
    return "The reply was sent."


def _send(office: Office, recipient: str, subject: str, body: str) -> None:
    sent = {"folder": "outbox", "address": recipient, "subject": subject, "sent_datetime": stamp(NOW), "body": body}
    office.add("emails", sent)


@made("calendar")
def get_event_information_by_id(office: Office, event_id: str, field: str) -> object:
    """Read one field of a calendar event: event_name, participant_email, event_start or duration."""
    return {field: field_of(row_of(office, "calendar", event_id, "event"), field)}


@made("calendar")
def search_events(office: Office, query: str = "", time_min: str = "", time_max: str = "") -> object:
    """Find events whose name or participant contains the query, the earliest first.

    time_min and time_max limit when they start.
    """
    low = moment(time_min, "time_min") if time_min else ""
    high = moment(time_max, "time_max") if time_max else "9"
    found = [
        {"event_id": row_id, **row}
        for row_id, row in office.tables["calendar"].items()
        if query.lower() in f"{row['event_name']} {row['participant_email']}".lower()
        and low <= row["event_start"] <= high
    ]
    return shown(sorted(found, key=lambda row: row["event_start"]), "events")


@made("calendar", changes=True)
def create_event(office: Office, event_name: str, participant_email: str, event_start: str, duration: str) -> object:
    """Put an event into the calendar. The duration is in minutes."""
    row = {
        "event_name": event_name,
        "participant_email": email_address(participant_email, "participant_email"),
        "event_start": moment(event_start, "event_start"),
        "duration": whole_number(duration, "duration"),
    }
    return {"event_id": office.add("calendar", row)}


@made("calendar", changes=True)
def delete_event(office: Office, event_id: str) -> object:
    """Delete an event from the calendar."""
    row_of(office, "calendar", event_id, "event")
    del office.tables["calendar"][event_id]
    return "The event was deleted."


@made("calendar", changes=True)
def update_event(office: Office, event_id: str, field: str, new_value: str) -> object:
    """Change one field of an event: event_name, participant_email, event_start or duration."""
    field_of(row_of(office, "calendar", event_id, "event"), field)
    checks = {"participant_email": email_address, "event_start": moment, "duration": whole_number}
    if not new_value.strip():
        raise Refused("new_value is empty")
    value = checks[field](new_value, "new_value") if field in checks else new_value
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
