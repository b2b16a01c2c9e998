"""Whether a text follows instructions, each named by its id and arguments. An error is `not followed`, and named."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ValidationError, validate_call

from resources_servers.instruction_following.extended import EXTENDED
from resources_servers.instruction_following.ifbench import IFBENCH
from resources_servers.instruction_following.ifeval import IFEVAL

CHECKERS: dict[str, Callable[..., bool]] = IFEVAL | EXTENDED | IFBENCH
BY_LANGUAGE = frozenset({"language:response_language", "change_case:english_capital", "change_case:english_lowercase"})
"""Ids that take milliseconds, and half a second the first time."""


class InstructionResult(BaseModel):
    """What became of one instruction."""

    instruction_id: str
    followed: bool
    problem: str | None = None
    """Why it could not be checked; it counts as not followed then."""


@lru_cache(maxsize=256)
def _checker(instruction_id: str) -> tuple[Callable[..., bool], frozenset[str]]:
    """The checker with checked arguments, and their names."""
    function = CHECKERS[instruction_id]
    return validate_call(function), frozenset(inspect.signature(function).parameters) - {"text"}


def checked(instruction_id: str, arguments: Mapping[str, Any] | None, text: str) -> InstructionResult:
    """Whether `text` follows one instruction. Arguments that are null or of other instructions are left out."""
    text = text.replace("\r\n", "\n")
    if instruction_id not in CHECKERS:
        return InstructionResult(
            instruction_id=instruction_id, followed=False, problem=f"there is no instruction {instruction_id!r}"
        )
    function, names = _checker(instruction_id)
    given = {name: value for name, value in (arguments or {}).items() if name in names and value is not None}
    try:
        followed, problem = bool(text.strip()) and function(text, **given), None
    except ValidationError as error:
        followed, problem = False, "; ".join(f"{_place(e['loc'])}: {e['msg']}" for e in error.errors()[:3])
    except Exception as error:  # the boundary of the checkers: whatever one raises is never a reward
        followed, problem = False, f"{type(error).__name__}: {error}"
    return InstructionResult(instruction_id=instruction_id, followed=followed, problem=problem)


def _place(location: Sequence[int | str]) -> str:
    return ".".join(map(str, location)) or "arguments"


def checked_all(ids: Sequence[str], kwargs: Sequence[Mapping[str, Any] | None], text: str) -> list[InstructionResult]:
    """`checked` for each of `ids` with its arguments."""
    return [checked(one, arguments, text) for one, arguments in zip(ids, kwargs, strict=True)]
