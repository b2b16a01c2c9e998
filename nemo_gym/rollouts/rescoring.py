"""Read a stored run with its input rows, to profile it (`RunProfile`) or to verify it again (`StoredRollouts`)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.journal import RolloutReader, read_rows, scan_rows
from nemo_gym.keys import AGENT_REF_KEY_NAME, RESPONSE_KEY_NAME
from nemo_gym.metrics.profile import Profile
from nemo_gym.rollouts.outcome import FailureKind, Job, ScoredRollout
from nemo_gym.rollouts.run_files import failures_path_for
from nemo_gym.wire.stored_rollout import RolloutId, RolloutKey, Row, StoredRollout

LISTED = 5


class RunProfile:
    """The profile of a stored run: its planned rows compared with its rollouts.

    Memory holds numbers and one file offset per task.
    """

    def __init__(self, inputs: Path, rollouts: Path) -> None:
        """Read both files.

        Raises:
            ConfigPathNotFoundError: a file is missing.
            StoreError: a line is damaged.
            RolloutRowsError: a rollout occurs twice.
        """
        check_files_exist(inputs, rollouts)
        self.profile = Profile()
        self._inputs = inputs
        self._offsets: dict[int, int] = {}
        for begin, _, row in scan_rows(inputs):
            self._offsets.setdefault(self.profile.expect(row), begin)
        for row in read_rows(rollouts):
            self.profile.add(row)

    def groups(self) -> Iterator[Row]:
        """Yield one entry per task that has a scored rollout, in order, with its input row."""
        with RolloutReader([self._inputs]) as reader:
            yield from self.profile.groups(lambda task: reader.row(self._offsets[task]))


def check_files_exist(inputs: Path, rollouts: Path) -> None:
    """Raise ConfigPathNotFoundError if a file is missing."""
    missing = [str(path) for path in (inputs, rollouts) if not path.is_file()]
    if missing:
        raise ConfigPathNotFoundError(f"file not found: {', '.join(missing)}", fix="check --inputs and --rollouts")


@dataclass
class StoredRollouts:
    """The rollouts of a run and the offsets of their inputs. Memory holds keys, not records."""

    rollouts: Path
    inputs: Path
    scored_ids: set[RolloutId] = field(default_factory=set)
    judge_failed: set[RolloutId] = field(default_factory=set)
    """Rollouts whose judge failed and that were not scored later."""
    agents: dict[str | None, int] = field(default_factory=dict)
    """Number of rollouts by agent; None for rollouts that name no agent."""
    _offsets: dict[RolloutId, int] = field(default_factory=dict)

    @classmethod
    def read(cls, rollouts: Path, inputs: Path, *, judge_failed_only: bool = False) -> "StoredRollouts":
        """Index the files of a run.

        Raises:
            ConfigPathNotFoundError: a file is missing.
            ConfigError: a rollout occurs twice or has no input.
            StoreError: a line is damaged.
        """
        check_files_exist(inputs, rollouts)
        stored = cls(rollouts, inputs)
        for begin, _, row in scan_rows(inputs):
            stored._offsets[_rollout_id(row, inputs)] = begin
        for record in read_rows(rollouts):
            task, rollout = rollout_id = _rollout_id(record, rollouts)
            if rollout_id in stored.scored_ids:
                raise ConfigError(f"task {task}, rollout {rollout} occurs twice", where=str(rollouts))
            stored.scored_ids.add(rollout_id)
            stored._count(record)
        for record in stored._judge_failures() if judge_failed_only else ():
            rollout_id = _rollout_id(record, rollouts)
            if rollout_id not in stored.scored_ids and rollout_id not in stored.judge_failed:
                stored.judge_failed.add(rollout_id)
                stored._count(record)
        if not stored.agents:
            raise ConfigError("the file has no rollouts to verify", where=str(rollouts))
        stored._check_inputs(stored.judge_failed if judge_failed_only else stored.scored_ids)
        return stored

    def jobs(self, *, judge_failed_only: bool = False) -> Iterator[Job]:
        """Yield the jobs to verify in stored order: each input row with its stored response."""
        with RolloutReader([self.inputs]) as inputs:
            for record in self._select_records(judge_failed_only):
                key = RolloutKey(*_rollout_id(record, self.rollouts))
                row = inputs.row(self._offsets[key.rollout_id]) | key.fields()
                if record.get(AGENT_REF_KEY_NAME):
                    row[AGENT_REF_KEY_NAME] = record[AGENT_REF_KEY_NAME]
                yield Job(key, {**row, RESPONSE_KEY_NAME: record.get(RESPONSE_KEY_NAME)})

    def scored_rollouts(self) -> Iterator[ScoredRollout]:
        """Yield the scored rollouts, to be copied unchanged."""
        for record in read_rows(self.rollouts):
            yield ScoredRollout(Job.of(record), record)

    def _select_records(self, judge_failed_only: bool) -> Iterator[Row]:
        """Yield the scored records, or the first judge failure of each rollout in `judge_failed`."""
        if not judge_failed_only:
            yield from read_rows(self.rollouts)
            return
        remaining = set(self.judge_failed)
        for record in self._judge_failures():
            rollout_id = _rollout_id(record, self.rollouts)
            if rollout_id in remaining:
                remaining.discard(rollout_id)
                yield record

    def _judge_failures(self) -> Iterator[Row]:
        """Yield the stored failures in which the agent was done and only the judge failed."""
        for record in read_rows(failures_path_for(self.rollouts)):
            if StoredRollout(record).failure_class == FailureKind.JUDGE_FAILED:
                yield record

    def _count(self, record: Row) -> None:
        agent = StoredRollout(record).agent
        self.agents[agent] = self.agents.get(agent, 0) + 1

    def _check_inputs(self, rollout_ids: set[RolloutId]) -> None:
        """Raise ConfigError if a rollout has no input row."""
        missing = sorted(rollout_ids - self._offsets.keys())
        if missing:
            listed = ", ".join(f"{task}:{rollout}" for task, rollout in missing[:LISTED])
            more = ", …" if len(missing) > LISTED else ""
            raise ConfigError(
                f"{len(missing)} rollouts belong to no input row: {listed}{more}",
                where=str(self.inputs),
                fix="name the materialized inputs of the same run with --inputs",
            )


def _rollout_id(record: Row, path: Path) -> RolloutId:
    try:
        return RolloutKey.of(record).rollout_id
    except ValueError as error:
        raise ConfigError(f"a row has no rollout key: {error}", where=str(path)) from error
