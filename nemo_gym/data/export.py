"""From rollouts to training data: examples to imitate (SFT), pairs to prefer (DPO), tasks to practise (RL).

Two passes: the first notes task, reward and place of every rollout, the second reads only what was chosen. Failures
have no reward and are never chosen.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias

import orjson
from pydantic import Field, field_validator, model_validator

from nemo_gym.config.schema_cli import BaseNeMoGymCLIConfig
from nemo_gym.data.export_files import ENDINGS, Write, export_file
from nemo_gym.data.export_index import Index, Record, Shelf, agent_of, read_index
from nemo_gym.data.export_messages import (
    ASSISTANT,
    Conversation,
    Developer,
    Reasoning,
    Style,
    conversation_of,
    prompt_of,
    tools_of,
)
from nemo_gym.data.hub_transfer import Meter, no_meter
from nemo_gym.data.problems import DataError
from nemo_gym.errors import ConversionError
from nemo_gym.keys import RESPONSE_KEY_NAME, RESPONSES_CREATE_PARAMS_KEY_NAME, ROLLOUT_ID_KEY_NAME, TASK_INDEX_KEY_NAME

Kind: TypeAlias = Literal["sft", "dpo", "rl"]
_NOT_METADATA = frozenset({RESPONSES_CREATE_PARAMS_KEY_NAME, RESPONSE_KEY_NAME, "reward", "agent_ref", "mask_sample"})
SAME_TEXT, OTHER_PROMPT = "both of a pair say the same", "the prompts of a pair differ"


class ExportDatasetConfig(BaseNeMoGymCLIConfig):
    """Turn rollouts into training data.

    gym dataset export --format sft -i results/rollouts.jsonl -o data/sft.jsonl
    """

    rollouts_jsonl_fpath: list[str] = Field(min_length=1, description="Files of rollouts.")
    output_fpath: str = Field(description="The file to write, ending in .jsonl or .parquet.")
    format: Kind = Field(description="sft, dpo or rl.")
    select: Literal["best", "above"] = Field(default="best", description="SFT: the best of each task, or all above.")
    min_reward: float | None = Field(default=None, description="SFT: the least reward; by default more than 0.")
    min_gap: float | None = Field(default=None, ge=0, description="DPO: least distance of a pair; RL: within a task.")
    pairs_per_task: int = Field(default=1, ge=1, description="DPO: at most so many pairs of each task.")
    reasoning: Reasoning = Field(default="inline", description="inline, separate or drop.")
    developer: Developer = Field(default="system", description="The role developer as system, or keep it.")
    loss_on: list[str] = Field(default=[ASSISTANT], description="The roles whose messages are learned.")

    @field_validator("rollouts_jsonl_fpath", "loss_on", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("output_fpath")
    @classmethod
    def _says_its_format(cls, value: str) -> str:
        if Path(value).suffix not in ENDINGS:
            raise ValueError(f"end it in {' or '.join(ENDINGS)}")
        return value

    @model_validator(mode="after")
    def _above_what(self) -> "ExportDatasetConfig":
        if self.select == "above" and self.min_reward is None:
            raise ValueError("'above' needs a min_reward")
        return self


@dataclass
class Exported:
    """What was written, and what was not and why."""

    path: Path
    format: Kind
    rows: int = 0
    rollouts: int = 0
    tasks: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """Rollouts that could not be chosen from, by reason."""
    skipped: Counter[str] = field(default_factory=Counter)
    """What was chosen and cannot be written, by reason."""


def export(
    config: ExportDatasetConfig,
    *,
    runs: Mapping[Path, str] | None = None,
    inputs: Mapping[Path, Path] | None = None,
    meter: Meter = no_meter,
) -> Exported:
    """Write the training data that `config` describes.

    `runs` has the identity of the run behind a file, `inputs` the file of the rows that were sent, from which the
    metadata of RL rows is taken; without it, it is what the rollout says besides its result.

    Raises:
        ConfigPathNotFoundError: a file is not there.
        DataError: a file is damaged, or nothing qualifies; nothing was written.
    """
    index = read_index(config.rollouts_jsonl_fpath, meter)
    done = Exported(Path(config.output_fpath), config.format, rollouts=len(index), tasks=len(index.task_numbers))
    done.left_out = index.left_out
    if not len(index):
        raise _nothing_scored(index)
    with closing(Shelf(index)) as shelf:
        bench = _Bench(config, index, shelf, done, runs or {}, inputs or {})
        chosen = {"sft": _examples, "dpo": _pairs, "rl": _tasks}[config.format](index, config)
        first = next(chosen, None)
        if first is None:
            raise _nothing_chosen(index, config)
        with export_file(done.path, config.format) as write:
            bench.write(chain([first], chosen), write)
            if not done.rows:
                raise DataError(f"nothing that was chosen can be written: {reasons(done.skipped)}")
    return done


def reasons(counted: Counter[str]) -> str:
    """`3 failed, 1 given twice`."""
    return ", ".join(f"{count:,} {reason}" for reason, count in counted.most_common()) or "none"


def _examples(index: Index, config: ExportDatasetConfig) -> Iterator[list[int]]:
    for group in index.groups():
        good = [number for number in group if _good(index.rewards[number], config.min_reward)]
        for number in good[:1] if config.select == "best" else good:
            yield [number]


def _good(reward: float, least: float | None) -> bool:
    return reward > 0 if least is None else reward >= least


def _pairs(index: Index, config: ExportDatasetConfig) -> Iterator[list[int]]:
    """Best with worst, second best with second worst, as long as they are far enough apart."""
    for group in index.groups():
        most = min(config.pairs_per_task, len(group) // 2)
        for better, worse in zip(group[:most], reversed(group), strict=False):
            if not _far_enough(index.rewards[better] - index.rewards[worse], config.min_gap):
                break
            yield [better, worse]


def _far_enough(gap: float, least: float | None) -> bool:
    return gap > 0 and (least is None or gap >= least)


def _tasks(index: Index, config: ExportDatasetConfig) -> Iterator[list[int]]:
    for group in index.groups():
        gap = index.rewards[group[0]] - index.rewards[group[-1]]
        if config.min_gap is None or gap >= config.min_gap:
            yield group


class _Bench:
    """Makes rows out of chosen rollouts."""

    def __init__(
        self,
        config: ExportDatasetConfig,
        index: Index,
        shelf: Shelf,
        done: Exported,
        runs: Mapping[Path, str],
        inputs: Mapping[Path, Path],
    ) -> None:
        self.config = config
        self.style = Style(config.reasoning, config.developer)
        self.index = index
        self.shelf = shelf
        self.done = done
        self.runs = runs
        self.inputs = _Inputs(inputs)

    def write(self, chosen: Iterable[list[int]], write: Write) -> None:
        kinds: dict[Kind, Callable[[list[int]], dict[str, Any]]] = {"sft": self.sft, "dpo": self.dpo, "rl": self.rl}
        make = kinds[self.config.format]
        for numbers in chosen:
            try:
                row = make(numbers)
            except ConversionError as error:
                self.done.skipped[error.problem] += 1
                continue
            write(row)
            self.done.rows += 1

    def sft(self, numbers: list[int]) -> dict[str, Any]:
        record, said = self._read(numbers[0])
        return {
            "messages": said.messages,
            "tools": said.tools,
            "loss_mask": said.mask(self.config.loss_on),
            "task": self._task(numbers[0]),
            "rollout": _number(self.index.rollouts[numbers[0]]),
            "rollout_id": _text(record.get(ROLLOUT_ID_KEY_NAME)),
            "reward": self.index.rewards[numbers[0]],
            **self._origin(numbers[0], record),
        }

    def dpo(self, numbers: list[int]) -> dict[str, Any]:
        better, worse = numbers
        record, good = self._read(better)
        _, bad = self._read(worse)
        if good.prompt != bad.prompt or good.tools != bad.tools:
            raise ConversionError(OTHER_PROMPT)
        if good.completion == bad.completion:
            raise ConversionError(SAME_TEXT)
        return {
            "prompt": good.prompt,
            "chosen": good.completion,
            "rejected": bad.completion,
            "tools": good.tools,
            "chosen_loss_mask": good.completion_mask(self.config.loss_on),
            "rejected_loss_mask": bad.completion_mask(self.config.loss_on),
            "task": self._task(better),
            "chosen_rollout": _number(self.index.rollouts[better]),
            "rejected_rollout": _number(self.index.rollouts[worse]),
            "chosen_reward": self.index.rewards[better],
            "rejected_reward": self.index.rewards[worse],
            **self._origin(better, record),
        }

    def rl(self, numbers: list[int]) -> dict[str, Any]:
        first = min(numbers, key=self.index.rollouts.__getitem__)
        record = self.shelf.record(first)
        rewards = [self.index.rewards[number] for number in numbers]
        source = self.index.files[self.index.sources[first]]
        sent = self.inputs.row(source, record.get(TASK_INDEX_KEY_NAME))
        return {
            "prompt": prompt_of(record, self.style),
            "tools": tools_of(record),
            "metadata": _metadata(record if sent is None else sent),
            "task": self._task(first),
            "num_rollouts": len(rewards),
            "mean_reward": sum(rewards) / len(rewards),
            "min_reward": min(rewards),
            "max_reward": max(rewards),
            **self._origin(first, record),
        }

    def _read(self, number: int) -> tuple[Record, Conversation]:
        record = self.shelf.record(number)
        return record, conversation_of(record, self.style)

    def _task(self, number: int) -> int:
        """What the file calls the task; our own count where it does not."""
        task = self.index.tasks[number]
        return self.index.task_numbers[task] if self.index.task_numbers[task] >= 0 else task

    def _origin(self, number: int, record: Record) -> dict[str, Any]:
        source = self.index.files[self.index.sources[number]]
        response = record[RESPONSE_KEY_NAME]
        return {
            "agent": agent_of(record),
            "model": _text(response.get("model")),
            "run": self.runs.get(source),
            "source": source.name,
        }


class _Inputs:
    """The rows that were sent, found by task. Their files are read once, and only when somebody asks."""

    def __init__(self, files: Mapping[Path, Path]) -> None:
        self._files = files
        self._places: dict[Path, dict[int, int]] = {}

    def row(self, source: Path, task: Any) -> Record | None:
        path = self._files.get(source)
        if path is None or not isinstance(task, int):
            return None
        if path not in self._places:
            self._places[path] = _first_places(path)
        place = self._places[path].get(task)
        if place is None:
            return None
        with path.open("rb") as file:
            file.seek(place)
            row: Record = orjson.loads(file.readline())
        return row


def _first_places(path: Path) -> dict[int, int]:
    places: dict[int, int] = {}
    place = 0
    with path.open("rb") as lines:
        for line in lines:
            try:
                task = orjson.loads(line).get(TASK_INDEX_KEY_NAME)
            except (orjson.JSONDecodeError, AttributeError):
                task = None
            if isinstance(task, int):
                places.setdefault(task, place)
            place += len(line)
    return places


def _metadata(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value for key, value in row.items() if key not in _NOT_METADATA and not key.startswith(("_ng_", "ng_"))
    }


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _number(value: int) -> int | None:
    return value if value >= 0 else None


def _nothing_scored(index: Index) -> DataError:
    where = ", ".join(map(str, index.files))
    if not index.left_out:
        return DataError("the file has no rollouts", where=where, fix="collect some with gym eval run")
    fix = "export the file of the scored rollouts, not the failures; gym eval run --resume tries failed ones again"
    return DataError(f"no rollout has a reward to go by: {reasons(index.left_out)}", where=where, fix=fix)


def _nothing_chosen(index: Index, config: ExportDatasetConfig) -> DataError:
    where = ", ".join(map(str, index.files))
    tasks = len(index.task_numbers)
    counted = f"{len(index):,} scored rollouts of {tasks:,} task{'s' * (tasks != 1)}"
    if config.format == "sft":
        least = "above 0" if config.min_reward is None else f"of at least {config.min_reward:g}"
        problem = f"no rollout has a reward {least} ({counted}; the best reward is {max(index.rewards):g})"
        return DataError(problem, where=where, fix="lower --min-reward, if lesser rollouts are worth imitating")
    if len(index) == tasks:
        fix = "collect several of each: gym eval run --num-repeats 4"
        return DataError(f"no two rollouts of a task to compare ({counted})", where=where, fix=fix)
    gap = f" by {config.min_gap:g} or more" if config.min_gap else ""
    problem = f"no task has rollouts whose rewards differ{gap} ({counted})"
    return DataError(problem, where=where, fix="lower --min-gap, or collect more rollouts of each task")
