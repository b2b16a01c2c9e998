"""Validation problems in the format of FastAPI, bounded in number and size, without secrets.

A request may have as many problems as values, and each problem repeats its input, which may be the whole request. Only
the first problems are listed, each with an excerpt of its input; inputs of usual size are complete.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from fastapi.encoders import jsonable_encoder
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from nemo_gym.config.secret_names import is_secret_name
from nemo_gym.config.secret_text import MASK
from nemo_gym.config.secrets import mask_secrets

Problem = dict[str, Any]

MAX_PROBLEMS = 20
MAX_CHARACTERS = 2000
"""Maximum characters of the input, and of each other field, of a problem."""
VALUE_CHARACTERS = 8
"""Characters that a container, number or other short value counts for."""

MANY_PROBLEMS = 1000
"""Number of problems above which their inputs are omitted."""
MAX_JSON_CHARACTERS = 200_000
OMISSION = "…"


def list_problems(error: ValidationError, location: str) -> list[Problem]:
    """Return the first problems of an error and a note about the others; the `loc` of each starts with `location`."""
    count = error.error_count()
    if count <= MANY_PROBLEMS:
        problems = error.errors(include_url=False)[:MAX_PROBLEMS]
    else:  # JSON without inputs is four times as fast as a dictionary for each problem
        text = error.json(include_url=False, include_context=False, include_input=False)
        problems = from_json(text[:MAX_JSON_CHARACTERS], allow_partial=True)[:MAX_PROBLEMS]
    complete = [problem for problem in problems if problem.keys() >= {"type", "loc", "msg"}]
    shown = [shorten({**problem, "loc": (location, *problem["loc"])}) for problem in complete]
    return [*shown, *_omission_note(count - len(shown), location)]


def _omission_note(count: int, location: str) -> list[Problem]:
    if count <= 0:
        return []
    return [{"type": "more_problems", "loc": (location,), "msg": f"{count:,} more problems are not listed"}]


def shorten(problem: Mapping[str, Any]) -> Problem:
    """Return a problem as JSON data with at most `MAX_CHARACTERS` characters in each field."""
    return {name: Excerpt(MAX_CHARACTERS).copy(value) for name, value in problem.items()}


def shown_problems(problems: list[Any]) -> list[Problem]:
    """Return the first problems of an invalid request as JSON data with secrets masked in their inputs."""
    # One more than MAX_PROBLEMS, because the last one may be the note of `list_problems`.
    shown = [_without_secrets(shorten(problem)) for problem in problems[: MAX_PROBLEMS + 1]]
    if len(problems) > MAX_PROBLEMS + 1:
        shown[-1:] = _omission_note(len(problems) - MAX_PROBLEMS, "body")
    return shown


def _without_secrets(problem: Problem) -> Problem:
    if "input" not in problem:
        return problem
    is_secret = any(isinstance(part, str) and is_secret_name(part) for part in problem.get("loc", ()))
    return {**problem, "input": MASK if is_secret else mask_secrets(problem["input"])}


class Excerpt:
    """Copies a value as JSON data up to a number of characters, and does not read the rest of the value."""

    def __init__(self, characters: int) -> None:
        self._left = characters

    def copy(self, value: Any) -> Any:
        """Return the value, or its start with a note about the length of the rest."""
        if isinstance(value, bytes | bytearray):
            value = value[: max(0, 4 * self._left)].decode("utf-8", errors="replace")
        if isinstance(value, str):
            return self._copy_text(value)
        self._left -= VALUE_CHARACTERS
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, BaseException):
            return self._copy_text(str(value))
        if isinstance(value, BaseModel):
            return self._copy_items(iter(value), len(type(value).model_fields))
        if isinstance(value, Mapping):
            return self._copy_items(value.items(), len(value))
        if isinstance(value, list | tuple | set | frozenset):
            return self._copy_list(value)
        return self.copy(jsonable_encoder(value)) if self._left > 0 else OMISSION

    def _copy_text(self, text: str) -> str:
        start = text[: max(0, self._left)]
        self._left -= len(start)
        return text if len(start) == len(text) else f"{start}{OMISSION} ({len(text):,} characters)"

    def _copy_items(self, items: Iterable[tuple[Any, Any]], count: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, item in items:
            if self._left <= 0:
                result[OMISSION] = f"{count - len(result):,} more fields"
                break
            result[self._copy_text(str(key))] = self.copy(item)
        return result

    def _copy_list(self, values: "list[Any] | tuple[Any, ...] | set[Any] | frozenset[Any]") -> list[Any]:
        result: list[Any] = []
        for item in values:
            if self._left <= 0:
                result.append(f"{OMISSION} ({len(values) - len(result):,} more items)")
                break
            result.append(self.copy(item))
        return result
