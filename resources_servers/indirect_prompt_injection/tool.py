"""The base class of tools: arguments are fields, and `run` carries the call out."""

from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict

from resources_servers.indirect_prompt_injection.world import World

Item = TypeVar("Item")


class ToolError(Exception):
    """The message to the model when a call cannot be carried out."""


class Tool(BaseModel):
    """One call of a tool: the fields are its arguments, the docstring is what the model reads."""

    model_config = ConfigDict(extra="forbid")

    TABLE: ClassVar[str]
    """The table it works on; a session without that table does not have the tool."""

    def run(self, world: World) -> Any:
        raise NotImplementedError


def require(table: Item | None) -> Item:
    """Return a table of the world; a tool runs only when its table exists."""
    if table is None:
        raise ToolError("there is nothing of the kind here")
    return table


def first_of(items: list[Item], what: str) -> Item:
    if not items:
        raise ToolError(f"there is no {what}")
    return items[0]


def next_number(numbers: list[int]) -> int:
    return max(numbers, default=0) + 1
