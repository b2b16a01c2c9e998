"""Select the rollouts of an export: index the scored rollouts of the files, group them by task, choose by reward."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import orjson
from pydantic import Field, field_validator, model_validator

from nemo_gym.catalog.row_problems import DataError
from nemo_gym.config.schema_cli import BaseNeMoGymCLIConfig
from nemo_gym.data.export_files import ENDINGS
from nemo_gym.data.export_messages import ASSISTANT, Developer, Reasoning
from nemo_gym.data.file_transfer import Meter, existing_file
from nemo_gym.journal import scan_rows
from nemo_gym.keys import ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.wire.stored_rollout import StoredRollout

ExportFormat: TypeAlias = Literal["sft", "dpo", "rl", "samples"]
FAILED, UNSCORED, MASKED, DUPLICATE = "failed", "without a finite reward", "masked by the agent", "given twice"
MASK_KEY = "mask_sample"


class ExportDatasetConfig(BaseNeMoGymCLIConfig):
    """Turn rollouts into training data.

    gym dataset export --format sft -i results/rollouts.jsonl -o data/sft.jsonl
    """

    rollouts_jsonl_fpath: list[str] = Field(min_length=1, description="Files of rollouts.")
    output_fpath: str = Field(description="The file to write, ending in .jsonl or .parquet.")
    format: ExportFormat = Field(description="sft, dpo, rl or samples.")
    select: Literal["best", "above"] = Field(
        default="best", description="SFT: the best rollout of each task, or all with at least min_reward (above)."
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


@dataclass(frozen=True, slots=True)
class IndexedRollout:
    """A scored rollout, and where its record is."""

    file: int
    """Position of its file among the files of the export."""
    offset: int
    """Byte offset of its line."""
    task: int
    """The task index in the file; if the file has none, the number of the task in order of appearance."""
    rollout: int | None
    """The rollout index in the file, if any."""
    reward: float


@dataclass
class ScoredRollouts:
    """The scored rollouts of some files by task, and counts of the rollouts that were left out."""

    files: list[Path]
    tasks: dict[tuple[int, bool, str, int], list[IndexedRollout]] = field(default_factory=dict)
    """Rollouts by position of the file, whether the task index is missing, agent, and task index or request hash."""
    left_out: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return sum(map(len, self.tasks.values()))

    def groups(self) -> Iterator[list[IndexedRollout]]:
        """Yield the rollouts of each task, best first; those with equal rewards by rollout index.

        Of duplicates, which have the same rollout index, only the first counts. Tasks are sorted by file, task index
        and agent, so that their order does not depend on which rollout finished first. Tasks without an index follow
        those with one, in order of appearance.
        """
        tasks = self.tasks.items()
        by_order = {(file, lacks_index, group[0].task, agent): group for (file, lacks_index, agent, _), group in tasks}
        for _, rollouts in sorted(by_order.items()):
            unique: dict[int, IndexedRollout] = {}
            for number, rollout in enumerate(rollouts):
                # Rollouts without an index are all different: they get negative keys, which no index has.
                key = -1 - number if rollout.rollout is None else rollout.rollout
                if unique.setdefault(key, rollout) is not rollout:
                    self.left_out[DUPLICATE] += 1
            yield sorted(unique.values(), key=lambda rollout: (-rollout.reward, rollout_order(rollout)))


def rollout_order(rollout: IndexedRollout) -> int:
    """Return the sort key of rollouts by index; those without an index come first."""
    return -1 if rollout.rollout is None else rollout.rollout


def index_rollouts(files: Sequence[str | Path], meter: Meter) -> ScoredRollouts:
    """Index the scored rollouts of some files; `meter` is called with the number of bytes read.

    Raises:
        ConfigPathNotFoundError: a file is missing.
        StoreError: a line is damaged; only an incomplete last line is skipped.
        DataError: no rollout has a reward.
    """
    index = ScoredRollouts([existing_file(path) for path in files])
    total = sum(path.stat().st_size for path in index.files)
    done = 0
    for file, path in enumerate(index.files):
        for begin, _, record in scan_rows(path):
            meter(done + begin, total)
            stored = StoredRollout(record)
            reward = stored.reward
            if stored.failure_class is not None or stored.is_cancelled:
                index.left_out[FAILED] += 1
            elif reward is None:
                index.left_out[UNSCORED] += 1
            elif record.get(MASK_KEY):
                index.left_out[MASKED] += 1
            else:
                task_index: Any = record.get(TASK_INDEX_KEY_NAME)
                has_index = isinstance(task_index, int)
                # Without a task index, rollouts of equal requests belong to the same task.
                task = task_id = int(task_index) if has_index else hash(orjson.dumps(dict(stored.request)))
                group = index.tasks.setdefault((file, not has_index, stored.agent or "", task_id), [])
                if not has_index:
                    task = group[0].task if group else len(index.tasks) - 1
                rollout = record.get(ROLLOUT_INDEX_KEY_NAME)
                rollout = rollout if isinstance(rollout, int) else None
                group.append(IndexedRollout(file, begin, task, rollout, reward))
        done += path.stat().st_size
    if not index.tasks:
        raise _nothing_scored(index)
    return index


def choose_rollouts(index: ScoredRollouts, config: ExportDatasetConfig) -> list[list[IndexedRollout]]:
    """Choose the rollouts of each row to write: one (SFT), two with the better one first (DPO), or all of a task (RL).

    Raises:
        DataError: no rollout qualifies.
    """
    choose = {"sft": _choose_examples, "dpo": _choose_pairs, "rl": _choose_tasks}[config.format]
    choices = [choice for group in index.groups() for choice in choose(group, config)]
    if not choices:
        raise _nothing_chosen(index, config)
    return choices


def format_counts(counts: Counter[str]) -> str:
    """Format as `3 failed, 1 given twice`."""
    return ", ".join(f"{count:,} {reason}" for reason, count in counts.most_common()) or "none"


def _choose_examples(group: list[IndexedRollout], config: ExportDatasetConfig) -> Iterator[list[IndexedRollout]]:
    """Choose the best rollout of a task, or all rollouts with enough reward."""
    lowest = config.min_reward
    good = [[rollout] for rollout in group if (rollout.reward > 0 if lowest is None else rollout.reward >= lowest)]
    yield from good[:1] if config.select == "best" else good


def _choose_pairs(group: list[IndexedRollout], config: ExportDatasetConfig) -> Iterator[list[IndexedRollout]]:
    """Pair the best rollout of a task with the worst, the second best with the second worst, while rewards differ."""
    max_pairs = min(config.pairs_per_task, len(group) // 2)
    for better, worse in zip(group[:max_pairs], reversed(group), strict=False):
        gap = better.reward - worse.reward
        if gap <= 0 or gap < (config.min_gap or 0):
            return
        yield [better, worse]


def _choose_tasks(group: list[IndexedRollout], config: ExportDatasetConfig) -> Iterator[list[IndexedRollout]]:
    """Choose all rollouts of a task whose best and worst reward differ enough."""
    if config.min_gap is None or group[0].reward - group[-1].reward >= config.min_gap:
        yield group


def _nothing_scored(index: ScoredRollouts) -> DataError:
    """Build the error for files without a scored rollout."""
    locations = ", ".join(map(str, index.files))
    if not index.left_out:
        return DataError("there are no rollouts here", where=locations, fix="collect some with gym eval run")
    fix = "export the file of the scored rollouts, not the failures; gym eval run --resume retries failed rollouts"
    return DataError(f"no rollout has a reward: {format_counts(index.left_out)}", where=locations, fix=fix)


def _nothing_chosen(index: ScoredRollouts, config: ExportDatasetConfig) -> DataError:
    """Build the error for scored rollouts none of which qualifies."""
    locations = ", ".join(map(str, index.files))
    tasks = len(index.tasks)
    counted = f"{len(index):,} scored rollouts of {tasks:,} task{'s' * (tasks != 1)}"
    if config.format == "sft":
        bound = "above 0" if config.min_reward is None else f"of at least {config.min_reward:g}"
        best = max(rollout.reward for rollouts in index.tasks.values() for rollout in rollouts)
        problem = f"no rollout has a reward {bound} ({counted}; the best reward is {best:g})"
        return DataError(problem, where=locations, fix="lower --min-reward")
    if len(index) == tasks:
        fix = "collect several rollouts per task: gym eval run --num-repeats 4"
        return DataError(f"no two rollouts of a task to compare ({counted})", where=locations, fix=fix)
    gap = f" by {config.min_gap:g} or more" if config.min_gap else ""
    problem = f"no task has rollouts whose rewards differ{gap} ({counted})"
    return DataError(problem, where=locations, fix="lower --min-gap, or collect more rollouts of each task")
