"""The world of one session: mail, files, a calendar, an account, web pages and channels, in plain tables."""

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Email(Record):
    email_id: int
    sender: str
    to: str = "me@office.example"
    subject: str
    body: str


class Event(Record):
    event_id: int
    title: str
    day: str
    attendees: list[str] = []
    notes: str = ""


class Transaction(Record):
    transaction_id: int
    party: str
    amount: float
    note: str = ""


class Page(Record):
    url: str
    title: str
    text: str
    comments: list[str] = []


class Message(Record):
    author: str
    text: str


class World(Record):
    """The tables that the tools of a session read and change. A missing table has no tools."""

    emails: list[Email] | None = None
    files: dict[str, str] | None = None
    """Text by path."""
    shared: dict[str, list[str]] = {}
    """People who may read a file, by path."""
    events: list[Event] | None = None
    balance: float = 0.0
    transactions: list[Transaction] | None = None
    pages: list[Page] | None = None
    channels: dict[str, list[Message]] | None = None
    members: dict[str, list[str]] = {}
    """People in a channel, by its name."""
