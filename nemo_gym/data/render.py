"""A whole file of rows with their input filled in from a prompt."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nemo_gym.config.schema_cli import BaseNeMoGymCLIConfig
from nemo_gym.data.lines import SPACE, Row, exact_row, read_line, row_line
from nemo_gym.data.problems import Problem, Problems
from nemo_gym.data.prompt import (
    HasInput,
    NoSuchField,
    PromptConfig,
    PromptError,
    PromptFieldError,
    find_prompt_config,
    load_prompt_config,
    prompted,
)
from nemo_gym.data.staged import StagedFiles
from nemo_gym.errors import ConfigError, ConfigPathNotFoundError, GymError
from nemo_gym.keys import RESPONSES_CREATE_PARAMS_KEY_NAME as PARAMS

PROMPT_CONFIG_USED_KEY = "prompt_config_used"


class MaterializePromptsConfig(BaseNeMoGymCLIConfig):
    """Fill a prompt template from every row of a dataset and write the rows that result."""

    input_jsonl_fpath: str
    """The rows, without `responses_create_params.input`."""
    prompt_config: str
    """The prompt file."""
    output_jsonl_fpath: str
    """Where the finished rows go."""


@dataclass(slots=True)
class Rendered:
    """What became of a file of rows."""

    path: Path
    rows: int = 0
    problems: Problems = field(default_factory=Problems)
    first: tuple[int, Problem] | None = None
    """The first line with a problem, and what it is."""
    preview: list[Row] = field(default_factory=list)


def render(path: Path, prompt_config: str | Path, output: Path, *, preview: int = 0) -> Rendered:
    """Fill the prompt for every row of a file, one at a time; the output appears only when all rows fit.

    Each row also says which prompt file was used (`prompt_config_used`). Empty lines are left out.

    Raises:
        ConfigPathNotFoundError: there is no such file, or no such prompt.
        PromptError: (a ValueError) the prompt file cannot be used.
    """
    prompt = load_prompt_config(prompt_config)
    used = str(find_prompt_config(prompt_config))
    if not path.is_file():
        raise ConfigPathNotFoundError(f"there is no file {str(path)!r}")
    if output.resolve() == path.resolve():
        raise ConfigError("the rows would be overwritten by the rendered ones", where=str(path), fix="another --output")
    found = Rendered(output)
    with StagedFiles() as staged:
        stream = staged.create(output)
        for number, filled in _filled(path, prompt):
            if isinstance(filled, list):
                found.first = found.first or (number, filled[0])
                found.problems.add(number, filled)
            elif not found.problems:
                row = {**filled, PROMPT_CONFIG_USED_KEY: used}
                stream.write(row_line(row))
                found.rows += 1
                if len(found.preview) < preview:
                    found.preview.append(row)
        if not found.problems:
            staged.commit()
    return found


def materialize_prompts(
    input_jsonl_fpath: str | Path, prompt_config: str | Path, output_jsonl_fpath: str | Path
) -> Path:
    """Fill the prompt for every row of a file; the output appears when all rows fit.

    Raises:
        ConfigError: the input is missing or a line is not a JSON object.
        PromptError, PromptFieldError: a row does not fit the prompt; file and line are named.
    """
    path = Path(input_jsonl_fpath)
    found = render(path, prompt_config, Path(output_jsonl_fpath))
    if found.first is not None:
        raise _error(*found.first, path, others=found.problems.rows - 1)
    return found.path


def _filled(path: Path, prompt: PromptConfig) -> Iterator[tuple[int, Row | list[Problem]]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            raw = line.strip(SPACE)
            if not raw:
                continue
            row, problems = read_line(raw)
            if problems or row is None:
                yield number, problems
                continue
            filled = prompted(exact_row(raw), prompt)
            yield number, [filled] if isinstance(filled, Problem) else filled


def _error(line: int, problem: Problem, path: Path, *, others: int) -> GymError:
    where = f"{path}:{line}"
    more = f" (and {others} more rows)" if others else ""
    if isinstance(problem, NoSuchField):
        return PromptFieldError(f"{problem}; {problem.detail}{more}", where=where)
    if isinstance(problem, HasInput):
        return PromptError(f"the row already has {PARAMS}.input{more}", where=where, fix=problem.detail)
    return (ConfigError if "line is" in problem.reason else PromptError)(f"{problem}{more}", where=where)
