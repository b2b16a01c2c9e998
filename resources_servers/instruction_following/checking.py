"""Check whether a text follows instructions, each given by its id and arguments. An error counts as not followed."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ValidationError, validate_call

from resources_servers.instruction_following.ifbench import IFBENCH
from resources_servers.instruction_following.ifeval import IFEVAL
from resources_servers.instruction_following.ifeval_training import IFEVAL_TRAINING

CHECKERS: dict[str, Callable[..., bool]] = IFEVAL | IFEVAL_TRAINING | IFBENCH
BY_LANGUAGE = frozenset({"language:response_language", "change_case:english_capital", "change_case:english_lowercase"})
"""Ids whose check takes milliseconds, and half a second the first time."""


class InstructionResult(BaseModel):
    """The result of one instruction."""

    instruction_id: str
    followed: bool
    problem: str | None = None
    """Reason why the instruction could not be checked; it counts as not followed."""


@lru_cache(maxsize=256)
def _checker(instruction_id: str) -> tuple[Callable[..., bool], frozenset[str]]:
    """Return the checker with argument validation, and the names of its arguments."""
    function = CHECKERS[instruction_id]
    return validate_call(function), frozenset(inspect.signature(function).parameters) - {"text"}


def check_instruction(instruction_id: str, arguments: Mapping[str, Any] | None, text: str) -> InstructionResult:
    """Check one instruction. Arguments that are null or belong to other instructions are ignored."""
    text = text.replace("\r\n", "\n")
    if instruction_id not in CHECKERS:
        return InstructionResult(
            instruction_id=instruction_id, followed=False, problem=f"there is no instruction {instruction_id!r}"
        )
    function, names = _checker(instruction_id)
    own_arguments = {name: value for name, value in (arguments or {}).items() if name in names and value is not None}
    try:
        followed, problem = bool(text.strip()) and function(text, **own_arguments), None
    except ValidationError as error:
        followed, problem = False, "; ".join(f"{_location(e['loc'])}: {e['msg']}" for e in error.errors()[:3])
    except Exception as error:  # the boundary of the checkers: an error is never a reward
        followed, problem = False, f"{type(error).__name__}: {error}"
    return InstructionResult(instruction_id=instruction_id, followed=followed, problem=problem)


def _location(location: Sequence[int | str]) -> str:
    return ".".join(map(str, location)) or "arguments"


def check_instructions(
    ids: Sequence[str], kwargs: Sequence[Mapping[str, Any] | None], text: str
) -> list[InstructionResult]:
    """Check each instruction of `ids` with its arguments."""
    return [check_instruction(one, arguments, text) for one, arguments in zip(ids, kwargs, strict=True)]
