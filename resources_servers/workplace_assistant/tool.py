"""Tools: a name, what the model is told about it, and a function of an office and texts."""

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


class Refused(Exception):
    """The call cannot be done, with a sentence for the model."""


@dataclass(frozen=True)
class Tool:
    """Something an assistant can do."""

    name: str
    function: Function
    description: str
    parameters: dict[str, bool]
    """Whether each has to be given."""
    changes: bool
    """It may change the office; one that only reads does not matter for the verdict."""

    def run(self, office: Office, arguments: Mapping[str, Any]) -> Any:
        """What the tool answers.

        Raises:
            Refused: the arguments are not the tool's, or cannot be used.
        """
        unknown = [name for name in arguments if name not in self.parameters]
        if unknown:
            raise Refused(f"{self.name} has no argument {unknown[0]!r}; it has {', '.join(self.parameters) or 'none'}")
        texts = {name: _text(name, value) for name, value in arguments.items() if value is not None}
        missing = [name for name, required in self.parameters.items() if required and not texts.get(name, "").strip()]
        if missing:
            raise Refused(f"{self.name} needs {', '.join(missing)}")
        return self.function(office, **texts)

    def schema(self, about: Mapping[str, str]) -> dict[str, Any]:
        """The tool as a row's `tools` has it."""
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


def made(prefix: str, *, changes: bool = False) -> Callable[[Function], Tool]:
    """Make a tool of a function; its docstring is what the model reads, its defaults say what may be left out."""

    def decorate(function: Function) -> Tool:
        parameters = list(inspect.signature(function).parameters.values())[1:]
        needed = {one.name: one.default is inspect.Parameter.empty for one in parameters}
        return Tool(f"{prefix}_{function.__name__}", function, inspect.getdoc(function) or "", needed, changes)

    return decorate


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Refused(f"{name} must be a text")
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    if len(text) > LONGEST_TEXT:
        raise Refused(f"{name} is longer than {LONGEST_TEXT:,} characters")
    return text.strip()


def moment(text: str, name: str) -> str:
    """A date and time as the tables have it; seconds may be left out, and a `T` may stand for the space."""
    for form in ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M"):
        try:
            return datetime.strptime(text.replace("T", " ", 1), form).strftime("%Y-%m-%d %H:%M:%S")
        except ValueError:
            continue
    raise Refused(f"{name} must be like 2026-03-12 09:30:00, and {text!r} is not")


def date(text: str, name: str) -> str:
    """A date as the tables have it; a time behind it is ignored."""
    try:
        return datetime.strptime(text[:10], "%Y-%m-%d").strftime("%Y-%m-%d")
    except ValueError:
        raise Refused(f"{name} must be like 2026-03-12, and {text!r} is not") from None


def whole_number(text: str, name: str) -> str:
    if not re.fullmatch(r"\d{1,5}", text):
        raise Refused(f"{name} must be a whole number, and {text!r} is not")
    return str(int(text))


def email_address(text: str, name: str) -> str:
    if not re.fullmatch(r"[^@\s]{1,100}@[^@\s]{1,100}\.[^@\s]{1,20}", text):
        raise Refused(f"{name} must be an email address, and {text!r} is not; the directory knows those of colleagues")
    return text.lower()


def one_of(text: str, allowed: tuple[str, ...], name: str) -> str:
    if text not in allowed:
        raise Refused(f"{name} must be one of {', '.join(allowed)}, and {text!r} is not")
    return text


def row_of(office: Office, table: str, row_id: str, kind: str) -> dict[str, str]:
    row = office.tables[table].get(row_id)
    if row is None:
        raise Refused(f"there is no {kind} with the id {row_id!r}")
    return row


def field_of(row: Mapping[str, str], field: str) -> str:
    if field not in row:
        raise Refused(f"there is no field {field!r}; there are {', '.join(row)}")
    return row[field]


def shown(found: list[dict[str, str]], kind: str) -> Any:
    """Search results, not more than a model should read at once."""
    if not found:
        return f"No {kind} found."
    if len(found) > MOST_RESULTS:
        return {"results": found[:MOST_RESULTS], "note": f"{len(found)} found, the first {MOST_RESULTS} are shown"}
    return {"results": found}


def as_text(answer: Any) -> str:
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
