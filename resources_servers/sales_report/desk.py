"""A desk: the files of the company, the drafts, the sent reports, and the tools to work with them."""

import fnmatch
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from resources_servers.sales_report.world import COLUMNS, PRODUCTS, QUARTERS, REGIONS, Figures, Order, world

_NUMBER = re.compile(r"[-+]?\d{1,15}(?:\.\d{1,15})?")


class ToolError(Exception):
    """A call that fails, with a message for the model."""


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
class SentReport:
    region: str
    quarter: str
    figures: Figures
    recipient: str


@dataclass
class Desk:
    """The state of one session."""

    seed: int
    drafts: dict[tuple[str, str], Figures] = field(default_factory=dict)
    sent: list[SentReport] = field(default_factory=list)

    def list_files(self, arguments: ListFiles) -> Any:
        return [path for path in world(self.seed).files if fnmatch.fnmatchcase(path, arguments.pattern)]

    def read_file(self, arguments: ReadFile) -> Any:
        files = world(self.seed).files
        if arguments.path not in files:
            raise ToolError(f"there is no file {arguments.path!r}")
        return files[arguments.path]

    def aggregate(self, arguments: Aggregate) -> Any:
        orders = world(self.seed).orders.get(arguments.path)
        if orders is None:
            raise ToolError(f"{arguments.path!r} is not a sales file with the columns {', '.join(COLUMNS)}")
        values = [getattr(order, arguments.column) for order in orders if _matches(order, arguments)]
        if arguments.operation == "count":
            return len(values)
        if arguments.operation == "sum":
            return sum(values)
        return round(sum(values) / len(values), 2) if values else "no rows"

    def find_contacts(self, arguments: FindContacts) -> Any:
        criteria = {"region": arguments.region, "role": arguments.role}
        return [
            vars(contact)
            for contact in world(self.seed).contacts
            if all(value is None or getattr(contact, key).lower() == value.lower() for key, value in criteria.items())
        ]

    def write_report(self, arguments: WriteReport) -> Any:
        figures = Figures(
            parse_number(arguments.revenue, "revenue"),
            parse_number(arguments.orders, "orders"),
            match_name(arguments.best_product, PRODUCTS, "best_product"),
            parse_number(arguments.change_percent, "change_percent"),
        )
        self.drafts[_key(arguments.region, arguments.quarter)] = figures
        return "The draft was written."

    def send_report(self, arguments: SendReport) -> Any:
        key = _key(arguments.region, arguments.quarter)
        if key not in self.drafts:
            raise ToolError("there is no draft for this region and quarter; write it first")
        addresses = {contact.email for contact in world(self.seed).contacts}
        recipient = arguments.recipient.lower()
        if recipient not in addresses:
            raise ToolError(f"{arguments.recipient!r} is not the address of anybody here")
        self.sent.append(SentReport(*key, replace(self.drafts[key]), recipient))
        return "The report was sent."


def _matches(order: Order, arguments: Aggregate) -> bool:
    criteria = {"status": arguments.status, "product": arguments.product}
    return all(value is None or getattr(order, key).lower() == value.lower() for key, value in criteria.items())


def _key(region: str, quarter: str) -> tuple[str, str]:
    return match_name(region, REGIONS, "region"), match_name(quarter.replace(" ", "-"), QUARTERS, "quarter")


def match_name(text: str, allowed: tuple[str, ...], name: str) -> str:
    """Return the value of `allowed` that `text` names; case does not matter."""
    match = next((one for one in allowed if one.lower() == text.strip().lower()), None)
    if match is None:
        raise ToolError(f"{name} must be one of {', '.join(allowed)}, and {text[:50]!r} is not")
    return match


def parse_number(value: float | str, name: str) -> float:
    """Parse a number as people write it: `1,234`, `-3.5 %`, `$400`."""
    text = value if isinstance(value, str) else repr(value)
    digits = text.replace(",", "").replace("−", "-").strip(" $€%")
    parsed = float(value) if not isinstance(value, str) else float(digits) if _NUMBER.fullmatch(digits) else math.nan
    if not math.isfinite(parsed):
        raise ToolError(f"{name} must be a number, and {text[:50]!r} is not")
    return parsed


TOOLS: dict[str, tuple[type[Arguments], Callable[[Desk, Any], Any], bool]] = {
    "list_files": (ListFiles, Desk.list_files, False),
    "read_file": (ReadFile, Desk.read_file, False),
    "aggregate": (Aggregate, Desk.aggregate, False),
    "find_contacts": (FindContacts, Desk.find_contacts, False),
    "write_report": (WriteReport, Desk.write_report, True),
    "send_report": (SendReport, Desk.send_report, True),
}
"""Arguments and method of each tool, and True if it changes the desk."""
