"""Prompt templates: a YAML file whose `user` and `system` texts are filled from the fields of a row.

A template names top-level fields and nothing else: `{question}`, perhaps with a format such as `{price:.2f}`.
It cannot reach into values (`{a.b}`, `{a[0]}`), so what a row contains never decides what is read.
"""

import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, PrivateAttr, ValidationError, field_validator, model_validator

from nemo_gym.catalog.roots import component_search_roots
from nemo_gym.data.problems import Problem
from nemo_gym.errors import ConfigPathNotFoundError, GymError
from nemo_gym.keys import RESPONSES_CREATE_PARAMS_KEY_NAME

SHOWN = 10

Row = dict[str, Any]


class PromptError(GymError, ValueError):
    """A prompt file that cannot be used, or rows it does not fit."""


class PromptFieldError(GymError, KeyError):
    """A template asks for a field that the row does not have."""


class HasInput(Problem):
    """The prompt would throw away what the row asks."""


class NoSuchField(Problem):
    """The template asks for a field the row does not have."""


class PromptConfig(BaseModel):
    """The two texts of a prompt file."""

    user: str
    """Becomes the user message."""
    system: str | None = None
    """Becomes the system message before it, if given."""

    _source: str | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _refuse_misspelt_keys(cls, data: Any) -> Any:
        """A misspelt `system` would quietly change every prompt of a run; other keys are the author's notes."""
        for key in data if isinstance(data, Mapping) else ():
            meant = get_close_matches(str(key), cls.model_fields, n=1, cutoff=0.7)
            if key not in cls.model_fields and meant:
                raise ValueError(f"{key!r} is not a key of a prompt; did you mean {meant[0]!r}?")
        return data

    @field_validator("user", "system")
    @classmethod
    def _can_be_filled(cls, template: str | None) -> str | None:
        if template is not None:
            list(_pieces(template))
        return template


def load_prompt_config(path: str | Path) -> PromptConfig:
    """The prompt file at `path`, looked for in the search roots; read again only when it has changed.

    Raises:
        ConfigPathNotFoundError: it is in none of the roots.
        PromptError: (a ValueError) it is not YAML, lacks `user`, or a template cannot be filled from field names.
    """
    found = find_prompt_config(path)
    status = found.stat()
    return _read(found, status.st_mtime_ns, status.st_size)


def find_prompt_config(path: str | Path) -> Path:
    """Where the prompt file is, resolved."""
    candidates = [Path(path)] if Path(path).is_absolute() else [root / path for root in component_search_roots()]
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    places = "\n".join(f"  {candidate}" for candidate in candidates)
    raise ConfigPathNotFoundError(f"there is no prompt file {str(path)!r}; looked at\n{places}")


def fill_prompt(config: PromptConfig, row: Mapping[str, Any], *, where: str | None = None) -> list[dict[str, str]]:
    """The messages for one row: system if the prompt has one, then user.

    `where` names the row in an error, for example `rows.jsonl:7`.

    Raises:
        PromptFieldError: (a KeyError) a field is missing; the message names those there are.
        PromptError: (a ValueError) a value does not take the format the template asks for.
    """
    place = ": ".join(part for part in (config._source, where) if part) or None
    messages = []
    if config.system is not None:
        messages.append({"role": "system", "content": _filled(config.system, row, place)})
    messages.append({"role": "user", "content": _filled(config.user, row, place)})
    return messages


def validate_prompt_compatibility(rows: Iterable[Mapping[str, Any]], config: PromptConfig) -> None:
    """Refuse rows that bring their own input: filling the prompt would throw it away.

    Raises:
        PromptError: (a ValueError) lists the indices of such rows.
    """
    offending = [index for index, row in enumerate(rows) if has_input(row)]
    if offending:
        listed = ", ".join(map(str, offending[:SHOWN])) + (", …" if len(offending) > SHOWN else "")
        raise PromptError(
            f"{len(offending)} rows already have {RESPONSES_CREATE_PARAMS_KEY_NAME}.input: {listed}",
            where=config._source,
            fix="leave the prompt config out, or use rows without an input",
        )


def apply_prompt_to_row(row: Mapping[str, Any], config: PromptConfig, *, where: str | None = None) -> Row:
    """A copy of `row` whose `responses_create_params.input` is the filled prompt; its other parameters stay."""
    given = row.get(RESPONSES_CREATE_PARAMS_KEY_NAME) or {}
    if not isinstance(given, Mapping):
        raise PromptError(f"{RESPONSES_CREATE_PARAMS_KEY_NAME} should be an object", where=where)
    return {**row, RESPONSES_CREATE_PARAMS_KEY_NAME: {**given, "input": fill_prompt(config, row, where=where)}}


def prompted(row: Row, prompt: PromptConfig) -> Row | Problem:
    """The row with its input filled in, or why it cannot be."""
    if has_input(row):
        advice = "leave the prompt config out, or use rows without an input"
        return HasInput(f"{RESPONSES_CREATE_PARAMS_KEY_NAME}.input", "the row already has an input", advice)
    try:
        return apply_prompt_to_row(row, prompt)
    except PromptFieldError as error:
        reason, _, there = error.problem.partition("; ")
        return NoSuchField("", reason, there)
    except PromptError as error:
        return Problem("", error.problem)


@lru_cache(maxsize=256)
def _read(path: Path, _changed: int, _size: int) -> PromptConfig:
    try:
        config = PromptConfig.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PromptError(f"the prompt file is not valid YAML: {error}", where=str(path)) from None
    except ValidationError as error:
        problems = "; ".join(_problem(detail["loc"], detail["msg"]) for detail in error.errors())
        raise PromptError(
            problems, where=str(path), fix="a prompt has 'user: <text>', perhaps 'system: <text>'"
        ) from None
    config._source = str(path)
    return config


def _problem(place: tuple[int | str, ...], message: str) -> str:
    name = ".".join(map(str, place))
    text = message.removeprefix("Value error, ")
    return f"{name}: {text}" if name else text


def _pieces(template: str) -> Iterator[tuple[str, str | None, str, str | None]]:
    """The literal texts and fields of a template; anything but a plain field name is refused."""
    for literal, field, spec, conversion in string.Formatter().parse(template):
        if field is not None:
            if not field or field.isdigit():
                raise ValueError(f"'{{{field}}}' names no field; write '{{{{' and '}}}}' for literal braces")
            if "." in field or "[" in field:
                raise ValueError(f"'{{{field}}}' reaches into a value; only plain field names can be filled in")
            if "{" in (spec or ""):
                raise ValueError(f"'{{{field}:{spec}}}' has a field inside its format")
            if conversion not in (None, "s", "r", "a"):
                raise ValueError(f"'{{{field}!{conversion}}}' has an unknown conversion")
        yield literal, field, spec or "", conversion


_CONVERSIONS: dict[str | None, Callable[[Any], Any]] = {None: lambda value: value, "s": str, "r": repr, "a": ascii}


def _filled(template: str, row: Mapping[str, Any], place: str | None) -> str:
    parts: list[str] = []
    for literal, field, spec, conversion in _pieces(template):
        parts.append(literal)
        if field is None:
            continue
        if field not in row:
            available = ", ".join(sorted(map(str, row))) or "none"
            raise PromptFieldError(f"the template asks for {field!r}; the row has: {available}", where=place)
        try:
            parts.append(format(_CONVERSIONS[conversion](row[field]), spec))
        except (ValueError, TypeError) as error:
            raise PromptError(f"{field!r} does not take the format {spec!r}: {error}", where=place) from None
    return "".join(parts)


def has_input(row: Mapping[str, Any]) -> bool:
    """Whether a row says itself what the model is asked."""
    parameters = row.get(RESPONSES_CREATE_PARAMS_KEY_NAME)
    return isinstance(parameters, Mapping) and bool(parameters.get("input"))
