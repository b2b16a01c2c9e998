"""Mail, files, calendar, bank, web and chat: every tool with its arguments and what it does."""

import re
from typing import Any

from resources_servers.indirect_prompt_injection.tool import Tool, ToolError, first_of, next_number, require
from resources_servers.indirect_prompt_injection.world import Email, Event, Message, Page, Transaction, World

# -- mail


class ListEmails(Tool):
    """List the emails in the inbox: number, sender and subject."""

    TABLE = "emails"

    def run(self, world: World) -> Any:
        return [email.model_dump(include={"email_id", "sender", "subject"}) for email in require(world.emails)]


class ReadEmail(Tool):
    """Read one email."""

    TABLE = "emails"
    email_id: int

    def run(self, world: World) -> Any:
        matches = [email for email in require(world.emails) if email.email_id == self.email_id]
        return first_of(matches, f"email {self.email_id}").model_dump()


class SendEmail(Tool):
    """Send an email. Several recipients are separated by commas."""

    TABLE = "emails"
    to: str
    subject: str
    body: str

    def run(self, world: World) -> Any:
        emails = require(world.emails)
        number = next_number([email.email_id for email in emails])
        emails.append(
            Email(email_id=number, sender="me@office.example", to=self.to, subject=self.subject, body=self.body)
        )
        return {"sent": number}


class ForwardEmail(Tool):
    """Forward an email to somebody."""

    TABLE = "emails"
    email_id: int
    to: str

    def run(self, world: World) -> Any:
        email = ReadEmail(email_id=self.email_id).run(world)
        return SendEmail(to=self.to, subject=f"Fwd: {email['subject']}", body=email["body"]).run(world)


class DeleteEmail(Tool):
    """Delete an email for good."""

    TABLE = "emails"
    email_id: int

    def run(self, world: World) -> Any:
        ReadEmail(email_id=self.email_id).run(world)
        world.emails = [email for email in require(world.emails) if email.email_id != self.email_id]
        return {"deleted": self.email_id}


# -- files


class ListFiles(Tool):
    """List the files there are, by path."""

    TABLE = "files"

    def run(self, world: World) -> Any:
        return sorted(require(world.files))


class ReadFile(Tool):
    """Read a text file."""

    TABLE = "files"
    path: str

    def run(self, world: World) -> Any:
        return first_of([text for path, text in require(world.files).items() if path == self.path], f"file {self.path}")


class WriteFile(Tool):
    """Write a text file; one of the same path is replaced."""

    TABLE = "files"
    path: str
    content: str

    def run(self, world: World) -> Any:
        require(world.files)[self.path] = self.content
        return {"written": self.path}


class DeleteFile(Tool):
    """Delete a file for good."""

    TABLE = "files"
    path: str

    def run(self, world: World) -> Any:
        ReadFile(path=self.path).run(world)
        del require(world.files)[self.path]
        return {"deleted": self.path}


class ShareFile(Tool):
    """Let a person outside read a file."""

    TABLE = "files"
    path: str
    person: str

    def run(self, world: World) -> Any:
        ReadFile(path=self.path).run(world)
        world.shared.setdefault(self.path, []).append(self.person)
        return {"shared": self.path, "with": self.person}


# -- calendar


class ListEvents(Tool):
    """List the events in the calendar: number, title and day."""

    TABLE = "events"

    def run(self, world: World) -> Any:
        return [event.model_dump(include={"event_id", "title", "day"}) for event in require(world.events)]


class ReadEvent(Tool):
    """Read an event with its attendees and notes."""

    TABLE = "events"
    event_id: int

    def run(self, world: World) -> Any:
        matches = [event for event in require(world.events) if event.event_id == self.event_id]
        return first_of(matches, f"event {self.event_id}").model_dump()


class CreateEvent(Tool):
    """Put an event into the calendar and invite people."""

    TABLE = "events"
    title: str
    day: str
    attendees: list[str] = []

    def run(self, world: World) -> Any:
        events = require(world.events)
        number = next_number([event.event_id for event in events])
        events.append(Event(event_id=number, title=self.title, day=self.day, attendees=self.attendees))
        return {"created": number}


class CancelEvent(Tool):
    """Cancel an event."""

    TABLE = "events"
    event_id: int

    def run(self, world: World) -> Any:
        ReadEvent(event_id=self.event_id).run(world)
        world.events = [event for event in require(world.events) if event.event_id != self.event_id]
        return {"cancelled": self.event_id}


# -- bank


class GetBalance(Tool):
    """Say how much money is in the account."""

    TABLE = "transactions"

    def run(self, world: World) -> Any:
        return {"balance": world.balance}


class ListTransactions(Tool):
    """List the latest transactions: number, party and amount."""

    TABLE = "transactions"

    def run(self, world: World) -> Any:
        fields = {"transaction_id", "party", "amount"}
        return [transaction.model_dump(include=fields) for transaction in require(world.transactions)]


class ReadTransaction(Tool):
    """Read a transaction with its note."""

    TABLE = "transactions"
    transaction_id: int

    def run(self, world: World) -> Any:
        matches = [one for one in require(world.transactions) if one.transaction_id == self.transaction_id]
        return first_of(matches, f"transaction {self.transaction_id}").model_dump()


class TransferMoney(Tool):
    """Send money from the account."""

    TABLE = "transactions"
    recipient: str
    amount: float
    note: str = ""

    def run(self, world: World) -> Any:
        if not 0 < self.amount <= world.balance:
            raise ToolError(f"{self.amount:g} cannot be sent: the balance is {world.balance:g}")
        made = require(world.transactions)
        number = next_number([one.transaction_id for one in made])
        world.balance -= self.amount
        made.append(Transaction(transaction_id=number, party=self.recipient, amount=-self.amount, note=self.note))
        return {"sent": number, "balance": world.balance}


# -- web


class SearchWeb(Tool):
    """Search the web: addresses and titles of pages with one of the words."""

    TABLE = "pages"
    query: str

    def run(self, world: World) -> Any:
        words = set(re.findall(r"\w+", self.query.casefold()))
        pages = require(world.pages)
        hits = [page for page in pages if words & set(re.findall(r"\w+", f"{page.title} {page.text}".casefold()))]
        return [page.model_dump(include={"url", "title"}) for page in hits]


class OpenPage(Tool):
    """Open a web page and read its text and comments."""

    TABLE = "pages"
    url: str

    def run(self, world: World) -> Any:
        return _page(world, self.url).model_dump()


class PostComment(Tool):
    """Publish a comment under a web page, under the user's name."""

    TABLE = "pages"
    url: str
    text: str

    def run(self, world: World) -> Any:
        _page(world, self.url).comments.append(self.text)
        return {"posted": self.url}


class SubmitForm(Tool):
    """Fill in the form of a web page and send it."""

    TABLE = "pages"
    url: str
    fields: dict[str, str]

    def run(self, world: World) -> Any:
        _page(world, self.url)
        return {"submitted": sorted(self.fields)}


def _page(world: World, url: str) -> Page:
    matches = [page for page in require(world.pages) if page.url.rstrip("/") == url.rstrip("/")]
    return first_of(matches, f"page {url}")


# -- chat


class ListChannels(Tool):
    """List the channels there are."""

    TABLE = "channels"

    def run(self, world: World) -> Any:
        return sorted(require(world.channels))


class ReadChannel(Tool):
    """Read the messages of a channel."""

    TABLE = "channels"
    channel: str

    def run(self, world: World) -> Any:
        return [message.model_dump() for message in _channel(world, self.channel)]


class PostMessage(Tool):
    """Post a message to a channel."""

    TABLE = "channels"
    channel: str
    text: str

    def run(self, world: World) -> Any:
        _channel(world, self.channel).append(Message(author="me", text=self.text))
        return {"posted": self.channel}


class InviteUser(Tool):
    """Invite a person to a channel, with all it holds."""

    TABLE = "channels"
    channel: str
    user: str

    def run(self, world: World) -> Any:
        _channel(world, self.channel)
        world.members.setdefault(self.channel, []).append(self.user)
        return {"invited": self.user}


def _channel(world: World, name: str) -> list[Message]:
    channel = name.lstrip("#")
    return first_of(
        [messages for key, messages in require(world.channels).items() if key == channel], f"channel {name}"
    )
