"""Export rollouts as training data: examples (SFT), preference pairs (DPO) or tasks (RL).

The files are read twice: the first pass indexes task, reward and offset of every rollout, the second reads the chosen
rollouts. Failures have no reward and are never chosen.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from nemo_gym.catalog.row_problems import DataError
from nemo_gym.config.schema_cli import BaseNeMoGymCLIConfig
from nemo_gym.data.export_files import ENDINGS, WriteRow, writing_export
from nemo_gym.data.export_messages import (
    ASSISTANT,
    ChatConversation,
    Developer,
    MessageStyle,
    Reasoning,
    chat_tools,
    prompt_messages,
    read_conversation,
)
from nemo_gym.data.export_selection import ScoredRollouts, index_rollouts
from nemo_gym.data.file_transfer import Meter, ignore_progress
from nemo_gym.errors import ConversionError
from nemo_gym.journal import RolloutReader, parse_line, scan_lines
from nemo_gym.keys import RESPONSE_KEY_NAME, RESPONSES_CREATE_PARAMS_KEY_NAME, ROLLOUT_ID_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.wire.stored_rollout import Row, StoredRollout

Kind: TypeAlias = Literal["sft", "dpo", "rl"]
_NOT_METADATA = frozenset({RESPONSES_CREATE_PARAMS_KEY_NAME, RESPONSE_KEY_NAME, "reward", "agent_ref", "mask_sample"})
SAME_TEXT, OTHER_PROMPT = "both completions of a pair are equal", "the prompts of a pair differ"


class ExportDatasetConfig(BaseNeMoGymCLIConfig):
    """Turn rollouts into training data.

    gym dataset export --format sft -i results/rollouts.jsonl -o data/sft.jsonl
    """

    rollouts_jsonl_fpath: list[str] = Field(min_length=1, description="Files of rollouts.")
    output_fpath: str = Field(description="The file to write, ending in .jsonl or .parquet.")
    format: Kind = Field(description="sft, dpo or rl.")
    select: Literal["best", "above"] = Field(
        default="best", description="SFT: the best rollout of each task, or all above min_reward."
    )
    min_reward: float | None = Field(default=None, description="SFT: lowest reward; default: more than 0.")
    min_gap: float | None = Field(
        default=None, ge=0, description="DPO: smallest reward difference of a pair; RL: within a task."
    )
    pairs_per_task: int = Field(default=1, ge=1, description="DPO: maximum pairs of each task.")
    reasoning: Reasoning = Field(default="inline", description="inline, separate or drop.")
    developer: Developer = Field(default="system", description="Write the role developer as system, or keep it.")
    loss_on: list[str] = Field(default=[ASSISTANT], description="Roles whose messages have a loss.")

    @field_validator("rollouts_jsonl_fpath", "loss_on", mode="before")
    @classmethod
    def _accept_single_value(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("output_fpath")
    @classmethod
    def _check_ending(cls, value: str) -> str:
        if Path(value).suffix not in ENDINGS:
            raise ValueError(f"the file name must end in {' or '.join(ENDINGS)}")
        return value

    @model_validator(mode="after")
    def _check_min_reward(self) -> "ExportDatasetConfig":
        if self.select == "above" and self.min_reward is None:
            raise ValueError("'above' needs a min_reward")
        return self


@dataclass
class ExportResult:
    """The number of rows written, and the number of rollouts left out by reason."""

    path: Path
    format: Kind
    rows: int = 0
    rollouts: int = 0
    tasks: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """Rollouts that could not be chosen, by reason."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Chosen rollouts that cannot be written, by reason."""


def export(
    config: ExportDatasetConfig,
    *,
    runs: Mapping[Path, str] | None = None,
    inputs: Mapping[Path, Path] | None = None,
    meter: Meter = ignore_progress,
) -> ExportResult:
    """Write the training data that `config` describes.

    `runs` maps each file of rollouts to its run id, and `inputs` to the file of its planned rows, from which the
    metadata of RL rows is taken. Without that file, the metadata are the other fields of the rollout.

    Raises:
        ConfigPathNotFoundError: a file is missing.
        StoreError: a file is damaged.
        DataError: no rollout qualifies; no file was written.
    """
    index = index_rollouts(config.rollouts_jsonl_fpath, meter)
    result = ExportResult(Path(config.output_fpath), config.format, rollouts=len(index), tasks=len(index.task_numbers))
    result.left_out = index.left_out
    if not len(index):
        raise _nothing_scored(index)
    choices = {"sft": _choose_examples, "dpo": _choose_pairs, "rl": _choose_tasks}[config.format](index, config)
    first = next(choices, None)
    if first is None:
        raise _nothing_chosen(index, config)
    with RolloutReader(index.files) as reader, writing_export(result.path, config.format) as write:
        builder = _RowBuilder(config, index, result, runs or {}, _InputRows(inputs or {}), reader)
        builder.write_rows(chain([first], choices), write)
        if not result.rows:
            raise DataError(f"no chosen rollout can be written: {format_counts(result.skipped)}")
    return result


def format_counts(counts: Counter[str]) -> str:
    """Format as `3 failed, 1 given twice`."""
    return ", ".join(f"{count:,} {reason}" for reason, count in counts.most_common()) or "none"


def _choose_examples(index: ScoredRollouts, config: ExportDatasetConfig) -> Iterator[list[int]]:
    """Choose the best rollout of each task, or all rollouts with enough reward."""
    lowest = config.min_reward
    for group in index.groups():
        rewards = index.rewards
        good = [n for n in group if (rewards[n] > 0 if lowest is None else rewards[n] >= lowest)]
        for number in good[:1] if config.select == "best" else good:
            yield [number]


def _choose_pairs(index: ScoredRollouts, config: ExportDatasetConfig) -> Iterator[list[int]]:
    """Pair the best rollout of a task with its worst, the second best with the second worst, while rewards differ."""
    for group in index.groups():
        max_pairs = min(config.pairs_per_task, len(group) // 2)
        for better, worse in zip(group[:max_pairs], reversed(group), strict=False):
            gap = index.rewards[better] - index.rewards[worse]
            if gap <= 0 or gap < (config.min_gap or 0):
                break
            yield [better, worse]


def _choose_tasks(index: ScoredRollouts, config: ExportDatasetConfig) -> Iterator[list[int]]:
    """Choose all rollouts of each task whose best and worst reward differ enough."""
    for group in index.groups():
        gap = index.rewards[group[0]] - index.rewards[group[-1]]
        if config.min_gap is None or gap >= config.min_gap:
            yield group


class _RowBuilder:
    """Build the rows of the export from chosen rollouts, which are given by their numbers in the index."""

    def __init__(
        self,
        config: ExportDatasetConfig,
        index: ScoredRollouts,
        result: ExportResult,
        runs: Mapping[Path, str],
        inputs: "_InputRows",
        reader: RolloutReader,
    ) -> None:
        self.config = config
        self.style = MessageStyle(config.reasoning, config.developer)
        self.index = index
        self.result = result
        self.runs = runs
        self.inputs = inputs
        self.reader = reader

    def write_rows(self, choices: Iterable[list[int]], write: WriteRow) -> None:
        """Build and write the row of each choice; count those that cannot be converted in `result.skipped`."""
        builders: dict[Kind, Callable[[list[int]], dict[str, Any]]]
        builders = {"sft": self.sft_row, "dpo": self.dpo_row, "rl": self.rl_row}
        build = builders[self.config.format]
        for numbers in choices:
            try:
                row = build(numbers)
            except ConversionError as error:
                self.result.skipped[error.problem] += 1
                continue
            write(row)
            self.result.rows += 1

    def sft_row(self, numbers: list[int]) -> dict[str, Any]:
        """Build an example from one rollout."""
        number = numbers[0]
        record, conversation = self._read(number)
        return {
            "messages": conversation.messages,
            "tools": conversation.tools,
            "loss_mask": conversation.mask(self.config.loss_on),
            "task": self._task(number),
            "rollout": self._rollout(number),
            "rollout_id": _text(record.get(ROLLOUT_ID_KEY_NAME)),
            "reward": self.index.rewards[number],
            **self._origin(number, record),
        }

    def dpo_row(self, numbers: list[int]) -> dict[str, Any]:
        """Build a preference pair from two rollouts, the better one first."""
        better, worse = numbers
        record, chosen = self._read(better)
        _, rejected = self._read(worse)
        if chosen.prompt != rejected.prompt or chosen.tools != rejected.tools:
            raise ConversionError(OTHER_PROMPT)
        if chosen.completion == rejected.completion:
            raise ConversionError(SAME_TEXT)
        return {
            "prompt": chosen.prompt,
            "chosen": chosen.completion,
            "rejected": rejected.completion,
            "tools": chosen.tools,
            "chosen_loss_mask": chosen.completion_mask(self.config.loss_on),
            "rejected_loss_mask": rejected.completion_mask(self.config.loss_on),
            "task": self._task(better),
            "chosen_rollout": self._rollout(better),
            "rejected_rollout": self._rollout(worse),
            "chosen_reward": self.index.rewards[better],
            "rejected_reward": self.index.rewards[worse],
            **self._origin(better, record),
        }

    def rl_row(self, numbers: list[int]) -> dict[str, Any]:
        """Build a task from all its rollouts."""
        first = min(numbers, key=self.index.rollouts.__getitem__)
        record = self._record(first)
        rewards = [self.index.rewards[number] for number in numbers]
        row = self.inputs.find(self.index.source(first), record.get(TASK_INDEX_KEY_NAME))
        return {
            "prompt": prompt_messages(record, self.style),
            "tools": chat_tools(record),
            "metadata": _metadata(record if row is None else row),
            "task": self._task(first),
            "num_rollouts": len(rewards),
            "mean_reward": sum(rewards) / len(rewards),
            "min_reward": min(rewards),
            "max_reward": max(rewards),
            **self._origin(first, record),
        }

    def _record(self, number: int) -> Row:
        return self.reader.row(self.index.offsets[number], self.index.sources[number])

    def _read(self, number: int) -> tuple[Row, ChatConversation]:
        record = self._record(number)
        return record, read_conversation(record, self.style)

    def _task(self, number: int) -> int:
        """Return the task index in the file; if the file has none, the number of the task in the export."""
        task = self.index.tasks[number]
        return self.index.task_numbers[task] if self.index.task_numbers[task] >= 0 else task

    def _rollout(self, number: int) -> int | None:
        rollout = self.index.rollouts[number]
        return rollout if rollout >= 0 else None

    def _origin(self, number: int, record: Row) -> dict[str, Any]:
        stored, source = StoredRollout(record), self.index.source(number)
        model = _text(stored.response.get("model"))
        return {"agent": stored.agent, "model": model, "run": self.runs.get(source), "source": source.name}


class _InputRows:
    """The planned input rows of each file of rollouts, by task. Each file is indexed once, on first use."""

    def __init__(self, files: Mapping[Path, Path]) -> None:
        self._files = files
        self._offsets: dict[Path, dict[Any, int]] = {}

    def find(self, source: Path, task: Any) -> Row | None:
        """Return the input row of a task in the file of rollouts `source`; None if it is not available."""
        path = self._files.get(source)
        if path is None or not isinstance(task, int):
            return None
        if path not in self._offsets:
            offsets: dict[Any, int] = {}
            for begin, line in scan_lines(path):
                offsets.setdefault((parse_line(line) or {}).get(TASK_INDEX_KEY_NAME), begin)
            self._offsets[path] = offsets
        offset = self._offsets[path].get(task)
        if offset is None:
            return None
        with RolloutReader([path]) as reader:
            return reader.row(offset)


def _metadata(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value for key, value in row.items() if key not in _NOT_METADATA and not key.startswith(("_ng_", "ng_"))
    }


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _nothing_scored(index: ScoredRollouts) -> DataError:
    """Build the error for files without a scored rollout."""
    locations = ", ".join(map(str, index.files))
    if not index.left_out:
        return DataError("the file has no rollouts", where=locations, fix="collect some with gym eval run")
    fix = "export the file of the scored rollouts, not the failures; gym eval run --resume retries failed rollouts"
    return DataError(f"no rollout has a reward: {format_counts(index.left_out)}", where=locations, fix=fix)


def _nothing_chosen(index: ScoredRollouts, config: ExportDatasetConfig) -> DataError:
    """Build the error for scored rollouts none of which qualifies."""
    locations = ", ".join(map(str, index.files))
    tasks = len(index.task_numbers)
    counted = f"{len(index):,} scored rollouts of {tasks:,} task{'s' * (tasks != 1)}"
    if config.format == "sft":
        bound = "above 0" if config.min_reward is None else f"of at least {config.min_reward:g}"
        problem = f"no rollout has a reward {bound} ({counted}; the best reward is {max(index.rewards):g})"
        return DataError(problem, where=locations, fix="lower --min-reward")
    if len(index) == tasks:
        fix = "collect several rollouts per task: gym eval run --num-repeats 4"
        return DataError(f"no two rollouts of a task to compare ({counted})", where=locations, fix=fix)
    gap = f" by {config.min_gap:g} or more" if config.min_gap else ""
    problem = f"no task has rollouts whose rewards differ{gap} ({counted})"
    return DataError(problem, where=locations, fix="lower --min-gap, or collect more rollouts of each task")
