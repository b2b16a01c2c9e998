"""Export rollouts as training data: examples (SFT), preference pairs (DPO) or tasks (RL).

The files are read twice: the first pass indexes task, reward and offset of every scored rollout, the second reads the
chosen rollouts.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.catalog.row_problems import DataError
from nemo_gym.data.export_files import writing_export
from nemo_gym.data.export_messages import ChatConversation, MessageStyle, chat_tools, prompt_messages, read_conversation
from nemo_gym.data.export_selection import (
    MASK_KEY,
    ExportDatasetConfig,
    ExportFormat,
    IndexedRollout,
    choose_rollouts,
    format_counts,
    index_rollouts,
    rollout_order,
)
from nemo_gym.data.file_transfer import Meter, ignore_progress
from nemo_gym.errors import ConversionError
from nemo_gym.journal import RolloutReader, parse_line, scan_lines
from nemo_gym.keys import (
    AGENT_REF_KEY_NAME,
    RESPONSE_KEY_NAME,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    ROLLOUT_ID_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)
from nemo_gym.metrics.column_statistics import mean
from nemo_gym.wire.stored_rollout import REWARD_KEY, Row, StoredRollout

__all__ = ["ExportDatasetConfig", "ExportResult", "export", "format_counts"]

_NOT_METADATA = frozenset(
    {RESPONSES_CREATE_PARAMS_KEY_NAME, RESPONSE_KEY_NAME, REWARD_KEY, AGENT_REF_KEY_NAME, MASK_KEY}
)
_RESERVED_PREFIXES = ("_ng_", "ng_")
"""Prefixes of the fields that Gym adds to rows and rollouts."""
SAME_COMPLETION, OTHER_PROMPT = "both completions of a pair are equal", "the prompts of a pair differ"


@dataclass
class ExportResult:
    """The number of rows written, of scored rollouts and their tasks, and of what was left out."""

    path: Path
    format: ExportFormat
    rows: int = 0
    rollouts: int = 0
    tasks: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """Number of rollouts that could not be chosen, by reason."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Number of rows that could not be built from the chosen rollouts, by reason."""


def export(
    config: ExportDatasetConfig,
    *,
    runs: Mapping[Path, str] | None = None,
    inputs: Mapping[Path, Path] | None = None,
    meter: Meter = ignore_progress,
) -> ExportResult:
    """Write the training data that `config` describes.

    `runs` maps files of rollouts to their run ids, and `inputs` maps them to the files of their planned rows. The
    metadata of an RL row are the fields of the planned row or, if that is not available, of the rollout.

    Raises:
        ConfigPathNotFoundError: a file is missing.
        StoreError: a file is damaged.
        DataError: no rollout qualifies; no file was written.
    """
    index = index_rollouts(config.rollouts_jsonl_fpath, meter)
    choices = choose_rollouts(index, config)
    result = ExportResult(
        Path(config.output_fpath), config.format, rollouts=len(index), tasks=len(index.tasks), left_out=index.left_out
    )
    with RolloutReader(index.files) as reader, writing_export(result.path) as write:
        builder = _RowBuilder(config, index.files, runs or {}, _InputRows(inputs or {}), reader)
        methods: dict[ExportFormat, Callable[[list[IndexedRollout]], dict[str, Any]]]
        methods = {"sft": builder.sft_row, "dpo": builder.dpo_row, "rl": builder.rl_row}
        for rollouts in choices:
            try:
                row = methods[config.format](rollouts)
            except ConversionError as error:
                result.skipped[error.problem] += 1
                continue
            write(row)
            result.rows += 1
        if not result.rows:
            raise DataError(f"no chosen rollout can be written: {format_counts(result.skipped)}")
    return result


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


@dataclass(frozen=True)
class _RowBuilder:
    """Build the rows of the export from chosen rollouts."""

    config: ExportDatasetConfig
    files: list[Path]
    runs: Mapping[Path, str]
    inputs: _InputRows
    reader: RolloutReader

    def sft_row(self, rollouts: list[IndexedRollout]) -> dict[str, Any]:
        """Build an example from one rollout."""
        (rollout,) = rollouts
        record, conversation = self._read(rollout)
        return {
            "messages": conversation.messages,
            "tools": conversation.tools,
            "loss_mask": conversation.loss_mask(self.config.loss_on),
            "task": rollout.task,
            "rollout": rollout.rollout,
            "rollout_id": _text(record.get(ROLLOUT_ID_KEY_NAME)),
            "reward": rollout.reward,
            **self._origin(rollout, record),
        }

    def dpo_row(self, rollouts: list[IndexedRollout]) -> dict[str, Any]:
        """Build a preference pair from two rollouts, the better one first."""
        better, worse = rollouts
        record, chosen = self._read(better)
        _, rejected = self._read(worse)
        if chosen.prompt != rejected.prompt or chosen.tools != rejected.tools:
            raise ConversionError(OTHER_PROMPT)
        if chosen.completion == rejected.completion:
            raise ConversionError(SAME_COMPLETION)
        return {
            "prompt": chosen.prompt,
            "chosen": chosen.completion,
            "rejected": rejected.completion,
            "tools": chosen.tools,
            "chosen_loss_mask": chosen.completion_loss_mask(self.config.loss_on),
            "rejected_loss_mask": rejected.completion_loss_mask(self.config.loss_on),
            "task": better.task,
            "chosen_rollout": better.rollout,
            "rejected_rollout": worse.rollout,
            "chosen_reward": better.reward,
            "rejected_reward": worse.reward,
            **self._origin(better, record),
        }

    def rl_row(self, rollouts: list[IndexedRollout]) -> dict[str, Any]:
        """Build a task from all its rollouts; prompt and origin come from the rollout with the lowest index."""
        first = min(rollouts, key=rollout_order)
        record = self.reader.row(first.offset, first.file)
        rewards = [rollout.reward for rollout in rollouts]
        input_row = self.inputs.find(self.files[first.file], record.get(TASK_INDEX_KEY_NAME))
        fields = record if input_row is None else input_row
        return {
            "prompt": prompt_messages(record, self._style),
            "tools": chat_tools(record),
            "metadata": {
                key: value
                for key, value in fields.items()
                if key not in _NOT_METADATA and not key.startswith(_RESERVED_PREFIXES)
            },
            "task": first.task,
            "num_rollouts": len(rewards),
            "mean_reward": mean(rewards),
            "min_reward": min(rewards),
            "max_reward": max(rewards),
            **self._origin(first, record),
        }

    @property
    def _style(self) -> MessageStyle:
        return MessageStyle(self.config.reasoning, self.config.developer)

    def _read(self, rollout: IndexedRollout) -> tuple[Row, ChatConversation]:
        """Read the record and the conversation of a rollout."""
        record = self.reader.row(rollout.offset, rollout.file)
        return record, read_conversation(record, self._style)

    def _origin(self, rollout: IndexedRollout, record: Row) -> dict[str, Any]:
        """Return the columns that say where a row comes from."""
        stored, source = StoredRollout(record), self.files[rollout.file]
        model = _text(stored.response.get("model"))
        return {"agent": stored.agent, "model": model, "run": self.runs.get(source), "source": source.name}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
