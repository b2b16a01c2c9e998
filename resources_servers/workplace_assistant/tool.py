"""Tools: a name, a description for the model, and a function of an office and text arguments."""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from resources_servers.workplace_assistant.office import Office

LONGEST_TEXT = 10_000
MOST_RESULTS = 10

Function = Callable[..., Any]


class ToolError(Exception):
    """A call that fails, with a message for the model."""


@dataclass(frozen=True)
class Tool:
    """An action of the assistant."""

    name: str
    function: Function
    description: str
    parameters: dict[str, bool]
    """True for each required parameter."""
    changes: bool
    """True if the tool may change the office; tools that only read do not affect the verdict."""

    def run(self, office: Office, arguments: Mapping[str, Any]) -> Any:
        """Run the tool and return its result.

        Raises:
            ToolError: the arguments do not fit the tool.
        """
        unknown = [name for name in arguments if name not in self.parameters]
        if unknown:
            raise ToolError(
                f"{self.name} has no argument {unknown[0]!r}; it has {', '.join(self.parameters) or 'none'}"
            )
        texts = {name: _text(name, value) for name, value in arguments.items() if value is not None}
        missing = [name for name, required in self.parameters.items() if required and not texts.get(name, "").strip()]
        if missing:
            raise ToolError(f"{self.name} needs {', '.join(missing)}")
        return self.function(office, **texts)

    def schema(self, about: Mapping[str, str]) -> dict[str, Any]:
        """Return the tool as a row offers it; `about` describes the parameters."""
        properties = {name: {"type": "string", "description": about[name]} for name in self.parameters}
        required = [name for name, needed in self.parameters.items() if needed]
        parameters = {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": parameters,
            "strict": False,
        }


def as_tool(prefix: str, *, changes: bool = False) -> Callable[[Function], Tool]:
    """Turn a function into a tool: its docstring is the description, its defaults make parameters optional."""

    def decorate(function: Function) -> Tool:
        parameters = list(inspect.signature(function).parameters.values())[1:]
        required = {parameter.name: parameter.default is inspect.Parameter.empty for parameter in parameters}
        return Tool(f"{prefix}_{function.__name__}", function, inspect.getdoc(function) or "", required, changes)

    return decorate


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ToolError(f"{name} must be a text")
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    if len(text) > LONGEST_TEXT:
        raise ToolError(f"{name} is longer than {LONGEST_TEXT:,} characters")
    return text.strip()


def parse_datetime(text: str, name: str) -> str:
    """Parse a date and time; seconds are optional, and `T` may replace the space."""
    for form in ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M"):
        try:
            return datetime.strptime(text.replace("T", " ", 1), form).strftime("%Y-%m-%d %H:%M:%S")
        except ValueError:
            continue
    raise ToolError(f"{name} must be like 2026-03-12 09:30:00, and {text!r} is not")


def parse_date(text: str, name: str) -> str:
    """Parse a date; a time after it is ignored."""
    try:
        return datetime.strptime(text[:10], "%Y-%m-%d").strftime("%Y-%m-%d")
    except ValueError:
        raise ToolError(f"{name} must be like 2026-03-12, and {text!r} is not") from None


def parse_whole_number(text: str, name: str) -> str:
    if not re.fullmatch(r"\d{1,5}", text):
        raise ToolError(f"{name} must be a whole number, and {text!r} is not")
    return str(int(text))


def parse_email_address(text: str, name: str) -> str:
    if not re.fullmatch(r"[^@\s]{1,100}@[^@\s]{1,100}\.[^@\s]{1,20}", text):
        raise ToolError(
            f"{name} must be an email address, and {text!r} is not; the directory knows those of colleagues"
        )
    return text.lower()


def parse_choice(text: str, allowed: tuple[str, ...], name: str) -> str:
    if text not in allowed:
        raise ToolError(f"{name} must be one of {', '.join(allowed)}, and {text!r} is not")
    return text


def find_row(office: Office, table: str, row_id: str, kind: str) -> dict[str, str]:
    row = office.tables[table].get(row_id)
    if row is None:
        raise ToolError(f"there is no {kind} with the id {row_id!r}")
    return row


def read_field(row: Mapping[str, str], field: str) -> str:
    if field not in row:
        raise ToolError(f"there is no field {field!r}; there are {', '.join(row)}")
    return row[field]


def format_results(rows: list[dict[str, str]], kind: str) -> Any:
    """Return search results, limited to the number that a model should read at once."""
    if not rows:
        return f"No {kind} found."
    if len(rows) > MOST_RESULTS:
        return {"results": rows[:MOST_RESULTS], "note": f"{len(rows)} found, the first {MOST_RESULTS} are shown"}
    return {"results": rows}


def as_text(answer: Any) -> str:
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
