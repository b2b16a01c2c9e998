"""Verify stored responses again without new rollouts, for example after a verifier changed or a judge failed."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from aiohttp import ClientResponseError
from pydantic import Field, model_validator

from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.data.atif_import import PROVENANCE_KEY
from nemo_gym.errors import ConfigError, EnvFailed, InvalidReply, InvalidReward
from nemo_gym.journal import RolloutReader, read_rows, scan_rows
from nemo_gym.keys import AGENT_REF_KEY_NAME, RESPONSE_KEY_NAME
from nemo_gym.reward_profile import check_files_exist, format_keys
from nemo_gym.rollout_collection import _get_max_rollout_attempts
from nemo_gym.rollouts.aggregate import aggregate_to_file, fetch_metrics
from nemo_gym.rollouts.attribution import response_text, server_types
from nemo_gym.rollouts.collect import AttemptRules, Observer, collect
from nemo_gym.rollouts.outcome import FailureKind, Job, OutcomeCounts, Phase, ScoredRollout
from nemo_gym.rollouts.run_files import failures_path_for, files_of_run, remove_run
from nemo_gym.rollouts.scoring_rules import verifier_rules
from nemo_gym.rollouts.store import RolloutStore, RunHistory
from nemo_gym.server_utils import ServerClient, get_response_json, raise_for_status
from nemo_gym.transport.error_causes import innermost_cause
from nemo_gym.transport.response_errors import ERROR_HEADER
from nemo_gym.wire.run_seed_verify import ReverifyMode
from nemo_gym.wire.stored_rollout import RolloutId, RolloutKey, Row, StoredRollout

UNSAFE_PREFIX = "unsafe_"
DEFAULT_CONCURRENCY = 256
MAX_ANSWER_LENGTH = 500
"""Characters of an error answer in the message of a failure."""
_INPUTS, _ROLLOUTS, _FAILURES = range(3)
"""Numbers of the files of a run in a `RolloutReader`."""


class RolloutReverificationConfig(BaseNeMoGymCLIConfig):
    """Verify the responses of stored rollouts again."""

    materialized_inputs_jsonl_fpath: str = Field(description="The planned input rows of the rollouts.")
    rollouts_jsonl_fpath: str = Field(description="The rollouts to verify again.")
    output_jsonl_fpath: str = Field(description="Output file for the rollouts with their new verdicts.")
    num_samples_in_parallel: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description=f"Number of responses verified at the same time; default: {DEFAULT_CONCURRENCY}."
    )
    limit: Annotated[int, Field(ge=0)] | None = Field(default=None, description="Use only the first N rollouts.")
    force: bool = Field(default=False, description="Verify even if a server does not declare that this is safe.")
    overwrite: bool = Field(default=False, description="Remove an earlier output first.")
    resume_from_cache: bool = Field(default=False, description="Keep verified rollouts and verify the rest.")
    disable_aggregation: bool = Field(default=False, description="Do not compute metrics at the end.")
    judge_failed_only: bool = Field(
        default=False, description="Copy the scored rollouts and verify only those whose judge failed."
    )
    failed: bool = Field(
        default=False, description="Copy the scored rollouts and verify those whose verification failed."
    )
    append: bool = Field(default=False, description="With judge_failed_only or failed: add to an existing output.")

    @model_validator(mode="after")
    def check_append(self) -> "RolloutReverificationConfig":
        """Raise ValueError if `append` is combined with options that contradict it."""
        if self.judge_failed_only and self.failed:
            raise ValueError("judge_failed_only and failed exclude each other")
        if self.append and not self.is_for_failed:
            raise ValueError("append works only with judge_failed_only or failed")
        if self.append and self.overwrite:
            raise ValueError("append and overwrite exclude each other")
        return self

    @property
    def is_for_failed(self) -> bool:
        """True if scored rollouts are copied and only failed ones are verified."""
        return self.judge_failed_only or self.failed

    @property
    def target(self) -> Path:
        """Path of the output; its name starts with `unsafe_` if `force` disabled the check of the servers."""
        path = Path(self.output_jsonl_fpath)
        is_safe = not self.force or self.judge_failed_only or path.name.startswith(UNSAFE_PREFIX)
        return path if is_safe else path.with_name(UNSAFE_PREFIX + path.name)


class StoredRollouts:
    """The rollouts of a run that are verified again, and their inputs. Memory holds keys and offsets, not records."""

    def __init__(self, rollouts: Path, inputs: Path, *, judge_failed_only: bool = False, failed: bool = False) -> None:
        """Index the files of a run; with `failed`, only rollouts whose verification failed are verified.

        Raises:
            ConfigPathNotFoundError: a file is missing.
            ConfigError: a rollout occurs twice or has no input.
            StoreError: a line is damaged.
        """
        check_files_exist(inputs, *([rollouts] if not failed else []))
        self.rollouts = rollouts
        self.agents: Counter[str | None] = Counter()
        """Number of rollouts by agent; None for rollouts that name no agent."""
        self._files = (inputs, rollouts, failures_path_for(rollouts))
        self._inputs = {_rollout_id(row, inputs): begin for begin, _, row in scan_rows(inputs)}
        self._to_verify: dict[RolloutId, tuple[int, int]] = {}
        """File number and offset of each record to verify, in stored order."""
        scored = self._index_scored()
        if judge_failed_only or failed:
            self._to_verify.clear()  # scored rollouts are copied
            self._index_failures(scored, _is_judge_failure if judge_failed_only else _is_verification_failure)
        if not self.agents:
            raise ConfigError("the file has no rollouts to verify", where=str(rollouts))
        if failed and not self._to_verify:
            raise ConfigError(
                "no rollout with a response failed in its verification", where=str(self._files[_FAILURES])
            )
        self._check_inputs()

    def __len__(self) -> int:
        """Return the number of rollouts to verify."""
        return len(self._to_verify)

    def _index_scored(self) -> set[RolloutId]:
        """Index the scored rollouts and return their ids."""
        for begin, _, record in scan_rows(self.rollouts) if self.rollouts.exists() else ():
            task, rollout = rollout_id = _rollout_id(record, self.rollouts)
            if rollout_id in self._to_verify:
                raise ConfigError(f"task {task}, rollout {rollout} occurs twice", where=str(self.rollouts))
            self._to_verify[rollout_id] = _ROLLOUTS, begin
            self.agents[StoredRollout(record).agent] += 1
        return set(self._to_verify)

    def _index_failures(self, scored: set[RolloutId], is_selected: Callable[[StoredRollout], bool]) -> None:
        """Index the first selected failure of each rollout that was not scored later."""
        failures = self._files[_FAILURES]
        for begin, _, record in scan_rows(failures) if failures.exists() else ():
            if not is_selected(StoredRollout(record)):
                continue
            rollout_id = _rollout_id(record, failures)
            if rollout_id not in scored and rollout_id not in self._to_verify:
                self._to_verify[rollout_id] = _FAILURES, begin
                self.agents[StoredRollout(record).agent] += 1

    def jobs(self) -> Iterator[Job]:
        """Yield the jobs to verify in stored order: each input row with its stored response."""
        with RolloutReader(self._files) as reader:
            for rollout_id, (file, begin) in self._to_verify.items():
                key, record = RolloutKey(*rollout_id), reader.row(begin, file)
                row = reader.row(self._inputs[rollout_id], _INPUTS) | key.fields()
                if record.get(AGENT_REF_KEY_NAME):
                    row[AGENT_REF_KEY_NAME] = record[AGENT_REF_KEY_NAME]
                row |= {PROVENANCE_KEY: record[PROVENANCE_KEY]} if PROVENANCE_KEY in record else {}
                yield Job(key, {**row, RESPONSE_KEY_NAME: record.get(RESPONSE_KEY_NAME)})

    def scored_rollouts(self) -> Iterator[ScoredRollout]:
        """Yield the scored rollouts, to be copied unchanged."""
        for record in read_rows(self.rollouts) if self.rollouts.exists() else ():
            yield ScoredRollout(Job.of(record), record)

    def _check_inputs(self) -> None:
        """Raise ConfigError if a rollout to verify has no input row."""
        missing = list(self._to_verify.keys() - self._inputs.keys())
        if missing:
            raise ConfigError(
                f"{len(missing)} rollouts belong to no input row: {format_keys(missing)}",
                where=str(self._files[_INPUTS]),
                fix="name the materialized inputs of the same run with --inputs",
            )


@dataclass(frozen=True)
class ReverificationResult:
    """The counts of outcomes, the metrics, and the numbers of rollouts that were verified earlier or copied."""

    tally: OutcomeCounts
    entries: list[Row]
    there_before: int
    copied: int


class Reverification:
    """One reverification: call `check_output`, then `check_modes` with running servers, then `run`."""

    def __init__(
        self, config: RolloutReverificationConfig, stored: StoredRollouts, verifiers: Mapping[str | None, str]
    ) -> None:
        self.config = config
        self.store = RolloutStore(config.target)
        self._stored = stored
        self._verifiers = verifiers

    def check_output(self) -> None:
        """Check that the output does not replace the input, and that an earlier output may be extended or removed.

        Raises:
            ConfigError: the message names the existing file and the options.
        """
        config = self.config
        is_input = self.store.output.resolve() == Path(config.rollouts_jsonl_fpath).resolve()
        if is_input and not config.append:
            raise ConfigError(
                "the output is the same file as the rollouts to verify",
                where=str(self.store.output),
                fix="another --output",
            )
        files_to_remove = files_of_run(self.store.output) if config.overwrite else []
        if Path(config.materialized_inputs_jsonl_fpath).resolve() in [path.resolve() for path in files_to_remove]:
            raise ConfigError(
                "overwriting the output would remove the inputs", where=str(self.store.output), fix="another --output"
            )
        existing = [str(path) for path in (self.store.output, self.store.failures) if path.exists()]
        if existing and not (config.overwrite or config.resume_from_cache or config.append):
            also = ", --append adds to it" if config.is_for_failed else ""
            raise ConfigError(
                "the output already exists",
                where=", ".join(existing),
                fix=f"--resume continues it, --overwrite removes it{also}, or choose another --output",
            )

    async def check_modes(self, client: ServerClient) -> list[str]:
        """Return the servers that do not declare themselves able to verify stored responses without their sessions.

        Raises:
            ConfigError: there are such servers, and `force` is not set.
        """
        if self.config.judge_failed_only:
            return []
        unsafe = []
        for server in sorted(set(self._verifiers.values())):
            mode = await reverify_mode(client, server)
            if mode is not ReverifyMode.STATELESS:
                unsafe.append(f"{server} ({mode.value})")
        if unsafe and not self.config.force:
            raise ConfigError(
                f"these servers do not declare that they can verify without the session: {', '.join(unsafe)}",
                where="/reverify_mode",
                fix="--force verifies anyway and writes a file whose name begins with 'unsafe_'",
            )
        return unsafe

    async def run(self, client: ServerClient, observers: Sequence[Observer] = ()) -> ReverificationResult:
        """Verify the stored rollouts, store each verdict as soon as it is known, and compute metrics.

        Raises:
            StoreError: a result could not be written; earlier results are intact.
            AgentFailed: the verdicts are stored, but a server returned no metrics for them.
        """
        counts = OutcomeCounts()
        max_attempts = _get_max_rollout_attempts()
        servers = client.global_config_dict
        with self.store:
            if self.config.overwrite and not self.config.resume_from_cache:
                remove_run(self.store.output)
            history = self.store.history()
            copied = self._copy_scored(history) if self.config.is_for_failed else 0

            def is_unfinished(job: Job) -> bool:
                is_given_up = self.config.resume_from_cache and history.is_given_up(job.key, max_attempts)
                return not is_given_up and not history.is_finished(job.key)

            # One attempt each: single calls are retried where that is safe, and failures can be resumed.
            await collect(
                (job.with_attempt(history.failed_attempts(job.key)) for job in self._jobs(is_unfinished)),
                partial(self._verify, client),
                [counts, *observers],
                concurrency=self.config.num_samples_in_parallel or DEFAULT_CONCURRENCY,
                store=self.store.write,
                rules=AttemptRules(server_type=server_types(servers), scoring=verifier_rules(servers, self._verifiers)),
            )
        entries = [] if self.config.disable_aggregation else await self._aggregate(client)
        return ReverificationResult(counts, entries, len(history.finished), copied)

    def _jobs(self, is_unfinished: Callable[[Job], bool]) -> Iterator[Job]:
        """Yield the jobs that are not verified yet, up to the limit; 0 means no limit."""
        return islice(filter(is_unfinished, self._stored.jobs()), self.config.limit or None)

    def _copy_scored(self, history: RunHistory) -> int:
        """Copy the scored rollouts that the output lacks, and return their number."""
        copied = 0
        for scored in self._stored.scored_rollouts():
            if not history.is_finished(scored.job.key):
                self.store.write(scored)
                copied += 1
        return copied

    async def _verify(self, client: ServerClient, job: Job) -> Any:
        """Send a stored response to its verifier and return the verifier's answer."""
        server = self._verifiers[StoredRollout(job.row).agent]
        if not isinstance(job.row.get(RESPONSE_KEY_NAME), dict):
            raise EnvFailed("the stored rollout has no response", where=server)
        try:
            provenance = {name: job.row[name] for name in (PROVENANCE_KEY,) if name in job.row}
            row = {name: value for name, value in job.row.items() if name not in provenance}
            reply = await client.post(server_name=server, url_path="/verify", json=row)
            await raise_for_status(reply)
            return await get_response_json(reply) | provenance
        except InvalidReply as error:
            raise EnvFailed(error.problem, where=server) from error
        except ClientResponseError as error:
            cause = error.headers.get(ERROR_HEADER) if error.headers else None
            kind = InvalidReward if cause == InvalidReward.__name__ else EnvFailed
            body = innermost_cause(response_text(error))[:MAX_ANSWER_LENGTH]
            is_invalid_row = error.status == 422 and not body.startswith("response.")  # as in a run
            answer = "refuses the row (422)" if is_invalid_row else f"answered {error.status}"
            raise kind(f"/verify {answer}: {body}", where=server) from error

    async def _aggregate(self, client: ServerClient) -> list[Row]:
        """Compute the metrics of the output, including the verifiers' own metrics, and write them."""

        async def fetch(agent: str, records: list[Row]) -> Row:
            return await fetch_metrics(client, self._verifiers[agent], records)

        return await aggregate_to_file(
            self.store.aggregate_metrics,
            self.store.records(),
            fetch,
            failures=read_rows(self.store.failures),
            has_own_metrics=self._verifiers.__contains__,
        )


async def reverify_mode(client: ServerClient, server: str) -> ReverifyMode:
    """Return the mode that a server declares for verifying stored responses, or `unknown`."""
    reply = await client.get(server_name=server, url_path="/reverify_mode")
    try:
        await raise_for_status(reply)
        return ReverifyMode((await get_response_json(reply))["reverify_mode"])
    except (ClientResponseError, ValueError, KeyError, TypeError):
        return ReverifyMode.UNKNOWN


def _is_judge_failure(stored: StoredRollout) -> bool:
    return stored.failure_class == FailureKind.JUDGE_FAILED


def _is_verification_failure(stored: StoredRollout) -> bool:
    """Return whether a rollout failed in its verification, after an episode whose response is stored."""
    return stored.failure.get("phase") == Phase.VERIFY and bool(stored.response)


def _rollout_id(record: Row, path: Path) -> RolloutId:
    try:
        return RolloutKey.of(record).rollout_id
    except ValueError as error:
        raise ConfigError(f"a row has no rollout key: {error}", where=str(path)) from error
