"""Prompt templates: a YAML file whose `user` and `system` texts are filled from the fields of a row.

A template may contain only top-level fields, such as `{question}`, with an optional format such as `{price:.2f}`.
Attributes and elements of values (`{a.b}`, `{a[0]}`) are not allowed, so a template cannot read anything but fields.
"""

import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, PrivateAttr, ValidationError, field_validator, model_validator

from nemo_gym.catalog.atomic_files import StagedFiles
from nemo_gym.catalog.row_problems import RowProblem, RowProblems
from nemo_gym.catalog.rows import SPACE, Row, exact_row, read_line, row_line
from nemo_gym.config.schema_cli import BaseNeMoGymCLIConfig
from nemo_gym.config.search_roots import component_search_roots, find_file
from nemo_gym.errors import ConfigError, ConfigPathNotFoundError, GymError
from nemo_gym.keys import RESPONSES_CREATE_PARAMS_KEY_NAME as PARAMS

MAX_LISTED = 10
PROMPT_CONFIG_USED_KEY = "prompt_config_used"

_FORMATTER = string.Formatter()
_CONVERSIONS = (None, "s", "r", "a")


class PromptError(GymError, ValueError):
    """A prompt file is invalid, or it cannot be filled for a row."""


class PromptFieldError(GymError, KeyError):
    """A template contains a field that the row does not have."""


class ExistingInput(RowProblem):
    """The row has an input, which the prompt would replace."""


class MissingField(RowProblem):
    """The template contains a field that the row does not have."""


class PromptConfig(BaseModel):
    """The two texts of a prompt file."""

    user: str
    """The template of the user message."""
    system: str | None = None
    """The template of the system message."""

    _source: str | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _reject_misspelt_keys(cls, data: Any) -> Any:
        """Reject misspelt keys such as `sytem`, which would silently change prompts; other unknown keys are allowed."""
        for key in data if isinstance(data, Mapping) else ():
            close = get_close_matches(str(key), cls.model_fields, n=1, cutoff=0.7)
            if key not in cls.model_fields and close:
                raise ValueError(f"{key!r} is not a key of a prompt; did you mean {close[0]!r}?")
        return data

    @field_validator("user", "system")
    @classmethod
    def _check_template(cls, template: str | None) -> str | None:
        """Parse a template to find its errors when the file is loaded."""
        if template is not None:
            list(_parse_template(template))
        return template


class MaterializePromptsConfig(BaseNeMoGymCLIConfig):
    """Fill a prompt template from every row of a dataset and write the resulting rows."""

    input_jsonl_fpath: str
    """The rows, without `responses_create_params.input`."""
    prompt_config: str
    """The prompt file."""
    output_jsonl_fpath: str
    """The file for the filled rows."""


@lru_cache(maxsize=256)
def _read_prompt_config(path: Path, _modified: int, _size: int) -> PromptConfig:
    """Read a prompt file. Modification time and size are part of the cache key, so a changed file is read again."""
    try:
        config = PromptConfig.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PromptError(f"the prompt file is not valid YAML: {error}", where=str(path)) from None
    except ValidationError as error:
        problems = [
            ": ".join([*map(str, detail["loc"]), detail["msg"].removeprefix("Value error, ")])
            for detail in error.errors()
        ]
        fix = "write 'user: <text>' and optionally 'system: <text>'"
        raise PromptError("; ".join(problems), where=str(path), fix=fix) from None
    config._source = str(path)
    return config


def load_prompt_config(path: str | Path) -> PromptConfig:
    """Load the prompt file at `path`, relative to a search root; cached until the file changes.

    Raises:
        ConfigPathNotFoundError: no search root has the file.
        PromptError: (a ValueError) the file is not YAML, lacks `user`, or has an invalid template.
    """
    file = find_prompt_config(path)
    status = file.stat()
    return _read_prompt_config(file, status.st_mtime_ns, status.st_size)


load_prompt_config.cache_clear = _read_prompt_config.cache_clear  # type: ignore[attr-defined]  # tests call it


def find_prompt_config(path: str | Path) -> Path:
    """Return the absolute path of a prompt file; `path` is relative to a search root."""
    return find_file(path, component_search_roots(), "the prompt file").resolve()


def fill_prompt(config: PromptConfig, row: Mapping[str, Any], *, where: str | None = None) -> list[dict[str, str]]:
    """Build the messages for one row: the system message, if the prompt has one, and the user message.

    `where` is the location of the row for errors, for example `rows.jsonl:7`.

    Raises:
        PromptFieldError: (a KeyError) a field is missing; the message lists the fields of the row.
        PromptError: (a ValueError) the format in the template is invalid for a value.
    """
    location = ": ".join(part for part in (config._source, where) if part) or None
    templates = {"system": config.system, "user": config.user}
    return [
        {"role": role, "content": _fill_template(template, row, location)}
        for role, template in templates.items()
        if template is not None
    ]


def validate_prompt_compatibility(rows: Iterable[Mapping[str, Any]], config: PromptConfig) -> None:
    """Check that no row has an input, which filling the prompt would replace.

    Raises:
        PromptError: (a ValueError) rows have an input; the message contains their indices.
    """
    indices = [index for index, row in enumerate(rows) if has_input(row)]
    if indices:
        listed = ", ".join(map(str, indices[:MAX_LISTED])) + (", …" if len(indices) > MAX_LISTED else "")
        fix = "remove the prompt config, or use rows without an input"
        problem = (
            f"{PARAMS}.input and a prompt config are mutually exclusive; {len(indices)} rows have an input: {listed}"
        )
        raise PromptError(problem, where=config._source, fix=fix)


def apply_prompt_to_row(row: Mapping[str, Any], config: PromptConfig, *, where: str | None = None) -> Row:
    """Return a copy of `row` whose `responses_create_params.input` is the filled prompt."""
    params = row.get(PARAMS)
    others = params if isinstance(params, Mapping) else {}  # a row may have any placeholder there
    return {**row, PARAMS: {**others, "input": fill_prompt(config, row, where=where)}}


def prompt_filler(config: PromptConfig) -> Callable[[Row, str], Row]:
    """Return `apply_prompt_to_row` as a function of a row and its location."""
    return lambda row, where: apply_prompt_to_row(row, config, where=where)


def fill_row(row: Row, prompt: PromptConfig) -> Row | RowProblem:
    """Return the row with the filled prompt as its input, or the reason why it cannot be filled."""
    if has_input(row):
        advice = "remove the prompt config, or use rows without an input"
        return ExistingInput(f"{PARAMS}.input", "the row already has an input", advice)
    try:
        return apply_prompt_to_row(row, prompt)
    except PromptFieldError as error:
        reason, _, fields = error.problem.partition("; ")  # the fields differ from row to row: they are the detail
        return MissingField("", reason, fields)
    except PromptError as error:
        return RowProblem("", error.problem)


def has_input(row: Mapping[str, Any]) -> bool:
    """Return whether a row has an input for the model."""
    params = row.get(PARAMS)
    return isinstance(params, Mapping) and bool(params.get("input"))


# -- a whole file -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RenderResult:
    """The result of filling a prompt for every row of a file."""

    path: Path
    rows: int = 0
    problems: RowProblems = field(default_factory=RowProblems)
    first_problem: tuple[int, RowProblem] | None = None
    """The number of the first line with a problem, and the problem."""
    preview: list[Row] = field(default_factory=list)
    """The first filled rows."""


def render(path: Path, prompt_config: str | Path, output: Path, *, preview: int = 0) -> RenderResult:
    """Fill the prompt for every row of a file; write the output if all rows can be filled, else report the problems.

    Each row also gets the path of the prompt file (`prompt_config_used`). Empty lines are skipped. The first `preview`
    filled rows are returned too.

    Raises:
        ConfigPathNotFoundError: the file or the prompt does not exist.
        PromptError: (a ValueError) the prompt file cannot be used.
    """
    prompt = load_prompt_config(prompt_config)
    prompt_path = str(find_prompt_config(prompt_config))
    if not path.is_file():
        raise ConfigPathNotFoundError(f"file not found: {str(path)!r}")
    if output.resolve() == path.resolve():
        raise ConfigError("the rendered rows would overwrite the input", where=str(path), fix="use another --output")
    result = RenderResult(output)
    with StagedFiles() as staged:
        stream = staged.create(output)
        for number, filled in _fill_lines(path, prompt):
            if isinstance(filled, list):
                result.first_problem = result.first_problem or (number, filled[0])
                result.problems.add(number, filled)
            elif not result.problems:
                filled[PROMPT_CONFIG_USED_KEY] = prompt_path
                stream.write(row_line(filled))
                result.rows += 1
                if len(result.preview) < preview:
                    result.preview.append(filled)
        if not result.problems:
            staged.commit()
    return result


def materialize_prompts(
    input_jsonl_fpath: str | Path, prompt_config: str | Path, output_jsonl_fpath: str | Path
) -> Path:
    """Fill the prompt for every row of a file and return the output path; raise for the first row with a problem.

    Raises:
        ConfigError: the input is missing or a line is not a JSON object.
        PromptError, PromptFieldError: the prompt cannot be filled for a row; the message contains file and line.
    """
    path = Path(input_jsonl_fpath)
    result = render(path, prompt_config, Path(output_jsonl_fpath))
    if result.first_problem is not None:
        raise _row_error(*result.first_problem, path, others=result.problems.rows - 1)
    return result.path


def _fill_lines(path: Path, prompt: PromptConfig) -> Iterator[tuple[int, Row | list[RowProblem]]]:
    """Yield the number of every line that is not empty, with its filled row or its problems."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            raw = line.strip(SPACE)
            if not raw:
                continue
            row, problems = read_line(raw)
            if problems or row is None:
                yield number, problems
                continue
            filled = fill_row(exact_row(raw), prompt)
            yield number, [filled] if isinstance(filled, RowProblem) else filled


def _row_error(line: int, problem: RowProblem, path: Path, *, others: int) -> GymError:
    """Return the error for the first row with a problem; `others` is the number of further rows with problems."""
    location = f"{path}:{line}"
    more = f" (and {others} more rows)" if others else ""
    if isinstance(problem, MissingField):
        return PromptFieldError(f"{problem}; {problem.detail}{more}", where=location)
    if isinstance(problem, ExistingInput):
        return PromptError(f"the row already has {PARAMS}.input{more}", where=location, fix=problem.detail)
    is_unreadable = "line is" in problem.reason  # "the line is not JSON", "the line is a list, not a JSON object", …
    return (ConfigError if is_unreadable else PromptError)(f"{problem}{more}", where=location)


# -- templates ----------------------------------------------------------------------------------------------------


def _parse_template(template: str) -> Iterator[tuple[str, str | None, str, str | None]]:
    """Yield (literal text, name of the field after it, format, conversion) for each part of a template.

    Raises:
        ValueError: a field is not a plain field name.
    """
    for literal, name, spec, conversion in _FORMATTER.parse(template):
        if name is not None:
            if not name or name.isdigit():
                raise ValueError(f"'{{{name}}}' has no field name; write '{{{{' and '}}}}' for literal braces")
            if "." in name or "[" in name:
                raise ValueError(f"'{{{name}}}' is not a plain field name; attributes and elements are not allowed")
            if "{" in (spec or ""):
                raise ValueError(f"'{{{name}:{spec}}}' has a field inside its format")
            if conversion not in _CONVERSIONS:
                raise ValueError(f"'{{{name}!{conversion}}}' has an unknown conversion")
        yield literal, name, spec or "", conversion


def _fill_template(template: str, row: Mapping[str, Any], location: str | None) -> str:
    """Replace the fields of a template by the values of a row."""
    parts: list[str] = []
    for literal, name, spec, conversion in _parse_template(template):
        parts.append(literal)
        if name is None:
            continue
        if name not in row:
            fields = ", ".join(sorted(map(str, row))) or "none"
            problem = f"the row lacks the field {name!r} of the template; it has: {fields}"
            raise PromptFieldError(problem, where=location)
        try:
            parts.append(format(_FORMATTER.convert_field(row[name], conversion), spec))
        except (ValueError, TypeError) as error:
            raise PromptError(f"the format {spec!r} is invalid for {name!r}: {error}", where=location) from None
    return "".join(parts)
