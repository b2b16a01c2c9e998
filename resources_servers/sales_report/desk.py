"""A desk: the company's files, the drafts written so far, what was sent, and the tools to work with them."""

import fnmatch
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from resources_servers.sales_report.world import COLUMNS, PRODUCTS, QUARTERS, REGIONS, Figures, Order, world

_NUMBER = re.compile(r"[-+]?\d{1,15}(?:\.\d{1,15})?")


class Refused(Exception):
    """A call that cannot be done, with a sentence for the model."""


class Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)


class ListFiles(Arguments):
    """List the company's files."""

    pattern: str = Field(default="*", max_length=100, description="Only these, like sales/2026-Q1/*.")


class ReadFile(Arguments):
    """Read a file."""

    path: str = Field(max_length=200, description="Its path, as list_files shows it.")


class Aggregate(Arguments):
    """Compute a sum, a count or a mean over the rows of a sales file, of those alone that have the given values."""

    path: str = Field(max_length=200, description="The sales file.")
    operation: Literal["sum", "count", "mean"]
    column: Literal["units", "amount"] = Field(default="amount", description="What is summed or averaged.")
    status: str | None = Field(default=None, description="Only orders with this status.")
    product: str | None = Field(default=None, description="Only orders of this product.")


class FindContacts(Arguments):
    """Find people of the company with their role, region, email address and availability."""

    region: str | None = Field(default=None, description="Only of this region.")
    role: str | None = Field(default=None, description="Only with this role.")


class WriteReport(Arguments):
    """Write the report of a region and a quarter as a draft. A second one takes the place of the first."""

    region: str
    quarter: str = Field(description="Like 2026-Q1.")
    revenue: float | str
    orders: float | str
    best_product: str
    change_percent: float | str
    summary: str = Field(default="", max_length=5000, description="A few words for the reader; not graded.")


class SendReport(Arguments):
    """Send the draft of a region and a quarter to somebody. What was sent cannot be taken back."""

    region: str
    quarter: str
    recipient: str = Field(max_length=200, description="The email address.")


@dataclass(frozen=True)
class Sent:
    region: str
    quarter: str
    figures: Figures
    recipient: str


@dataclass
class Desk:
    """What one session works on."""

    seed: int
    drafts: dict[tuple[str, str], Figures] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)

    def list_files(self, given: ListFiles) -> Any:
        return [path for path in world(self.seed).files if fnmatch.fnmatchcase(path, given.pattern)]

    def read_file(self, given: ReadFile) -> Any:
        files = world(self.seed).files
        if given.path not in files:
            raise Refused(f"there is no file {given.path!r}")
        return files[given.path]

    def aggregate(self, given: Aggregate) -> Any:
        orders = world(self.seed).orders.get(given.path)
        if orders is None:
            raise Refused(f"{given.path!r} is not a sales file with the columns {', '.join(COLUMNS)}")
        values = [getattr(order, given.column) for order in orders if _matches(order, given)]
        if given.operation == "count":
            return len(values)
        if given.operation == "sum":
            return sum(values)
        return round(sum(values) / len(values), 2) if values else "no rows"

    def find_contacts(self, given: FindContacts) -> Any:
        asked = {"region": given.region, "role": given.role}
        return [
            vars(contact)
            for contact in world(self.seed).contacts
            if all(value is None or getattr(contact, key).lower() == value.lower() for key, value in asked.items())
        ]

    def write_report(self, given: WriteReport) -> Any:
        figures = Figures(
            number(given.revenue, "revenue"),
            number(given.orders, "orders"),
            known(given.best_product, PRODUCTS, "best_product"),
            number(given.change_percent, "change_percent"),
        )
        self.drafts[_key(given.region, given.quarter)] = figures
        return "The draft was written."

    def send_report(self, given: SendReport) -> Any:
        key = _key(given.region, given.quarter)
        if key not in self.drafts:
            raise Refused("there is no draft for this region and quarter; write it first")
        addresses = {contact.email for contact in world(self.seed).contacts}
        recipient = given.recipient.lower()
        if recipient not in addresses:
            raise Refused(f"{given.recipient!r} is not the address of anybody here")
        self.sent.append(Sent(*key, replace(self.drafts[key]), recipient))
        return "The report was sent."


def _matches(order: Order, given: Aggregate) -> bool:
    asked = {"status": given.status, "product": given.product}
    return all(value is None or getattr(order, key).lower() == value.lower() for key, value in asked.items())


def _key(region: str, quarter: str) -> tuple[str, str]:
    return known(region, REGIONS, "region"), known(quarter.replace(" ", "-"), QUARTERS, "quarter")


def known(text: str, allowed: tuple[str, ...], name: str) -> str:
    """The one of `allowed` that is meant; case does not matter."""
    found = next((one for one in allowed if one.lower() == text.strip().lower()), None)
    if found is None:
        raise Refused(f"{name} must be one of {', '.join(allowed)}, and {text[:50]!r} is not")
    return found


def number(value: float | str, name: str) -> float:
    """A number as people write it: `1,234`, `-3.5 %`, `$400`."""
    text = value if isinstance(value, str) else repr(value)
    plain = text.replace(",", "").replace("−", "-").strip(" $€%")
    found = float(value) if not isinstance(value, str) else float(plain) if _NUMBER.fullmatch(plain) else math.nan
    if not math.isfinite(found):
        raise Refused(f"{name} must be a number, and {text[:50]!r} is not")
    return found


TOOLS: dict[str, tuple[type[Arguments], Callable[[Desk, Any], Any], bool]] = {
    "list_files": (ListFiles, Desk.list_files, False),
    "read_file": (ReadFile, Desk.read_file, False),
    "aggregate": (Aggregate, Desk.aggregate, False),
    "find_contacts": (FindContacts, Desk.find_contacts, False),
    "write_report": (WriteReport, Desk.write_report, True),
    "send_report": (SendReport, Desk.send_report, True),
}
"""What each tool takes and does, and whether it changes the desk."""
