"""What a tool is: a class with its arguments as fields and what it does as `run`."""

from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict

from resources_servers.indirect_prompt_injection.world import World

Found = TypeVar("Found")


class ToolError(Exception):
    """What the model is told when a call cannot be carried out."""


class Tool(BaseModel):
    """One call of a tool: the fields are its arguments, the docstring is what the model reads."""

    model_config = ConfigDict(extra="forbid")

    TABLE: ClassVar[str]
    """The table it works on; without that table a session has no such tool."""

    def run(self, world: World) -> Any:
        raise NotImplementedError


def given(table: Found | None) -> Found:
    """A table of the world, which a tool is only asked about when it is there."""
    if table is None:
        raise ToolError("there is nothing of the kind here")
    return table


def one_of(found: list[Found], what: str) -> Found:
    if not found:
        raise ToolError(f"there is no {what}")
    return found[0]


def next_number(numbers: list[int]) -> int:
    return max(numbers, default=0) + 1
