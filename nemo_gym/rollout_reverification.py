"""Verify stored responses again: a changed verifier, or a judge that was down, without playing anything anew."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from aiohttp import ClientResponseError
from pydantic import Field, model_validator

from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.errors import AgentFailed, ConfigError, EnvFailed
from nemo_gym.keys import RESPONSE_KEY_NAME
from nemo_gym.rollout_collection import _get_max_rollout_attempts
from nemo_gym.rollouts import previous
from nemo_gym.rollouts.aggregate import aggregate, ask_server, write_metrics
from nemo_gym.rollouts.collect import Observer, Terms, collect
from nemo_gym.rollouts.job import Job, Row
from nemo_gym.rollouts.jsonl import read_rows
from nemo_gym.rollouts.paths import failures_path_for
from nemo_gym.rollouts.reverify import StoredRollouts, agent_of
from nemo_gym.rollouts.rules import Rule, rules_of
from nemo_gym.rollouts.store import History, RolloutStore
from nemo_gym.rollouts.tally import Tally
from nemo_gym.rollouts.whom import server_types
from nemo_gym.server_utils import ServerClient, get_response_json, raise_for_status
from nemo_gym.wire.tasks import ReverifyMode

UNSAFE_PREFIX = "unsafe_"
AT_ONCE = 256
"""How many responses are verified at once when nobody says."""


class RolloutReverificationConfig(BaseNeMoGymCLIConfig):
    """Verify the responses of stored rollouts again."""

    materialized_inputs_jsonl_fpath: str = Field(description="The inputs that the rollouts answer.")
    rollouts_jsonl_fpath: str = Field(description="The rollouts to verify again.")
    output_jsonl_fpath: str = Field(description="Where the rollouts with their new verdicts go.")
    num_samples_in_parallel: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description=f"How many responses are verified at once; {AT_ONCE} when not given."
    )
    limit: Annotated[int, Field(ge=0)] | None = Field(default=None, description="Only the first so many rollouts.")
    force: bool = Field(default=False, description="Verify although a server does not say that it can do so again.")
    overwrite: bool = Field(default=False, description="Remove an earlier output first.")
    resume_from_cache: bool = Field(default=False, description="Keep what is verified and do the rest.")
    disable_aggregation: bool = Field(default=False, description="Do not compute metrics at the end.")
    judge_failed_only: bool = Field(
        default=False, description="Copy the scored rollouts and verify only those whose judge failed."
    )
    append: bool = Field(default=False, description="With judge_failed_only: add to an output that is there.")

    @model_validator(mode="after")
    def check_append(self) -> "RolloutReverificationConfig":
        if self.append and not self.judge_failed_only:
            raise ValueError("append goes only with judge_failed_only")
        if self.append and self.overwrite:
            raise ValueError("append and overwrite exclude each other")
        return self

    @property
    def target(self) -> Path:
        """The output; `unsafe_` stands before its name when the guard was switched off."""
        path = Path(self.output_jsonl_fpath)
        guarded = not self.force or self.judge_failed_only or path.name.startswith(UNSAFE_PREFIX)
        return path if guarded else path.with_name(UNSAFE_PREFIX + path.name)


@dataclass(frozen=True)
class Reverified:
    """How it went: the outcomes, the scores, and how many rollouts were there before or were copied."""

    tally: Tally
    entries: list[Row]
    there_before: int
    copied: int


class Reverification:
    """One reverification: `check_output`, then `check_modes` of the running servers, then `run`."""

    def __init__(
        self, config: RolloutReverificationConfig, stored: StoredRollouts, verifiers: Mapping[str | None, str]
    ) -> None:
        self.config = config
        self.store = RolloutStore(config.target)
        self._stored = stored
        self._verifiers = verifiers

    def check_output(self) -> None:
        """Refuse to mix with, or to write over, what is there.

        Raises:
            ConfigError: says what is there and how to go on.
        """
        config = self.config
        same = self.store.output.resolve() == Path(config.rollouts_jsonl_fpath).resolve()
        if same and not config.append:
            raise ConfigError(
                "the output is the very file that is to be verified",
                where=str(self.store.output),
                fix="another --output",
            )
        at_risk = previous.files_of(self.store.output) if config.overwrite else []
        if Path(config.materialized_inputs_jsonl_fpath).resolve() in [path.resolve() for path in at_risk]:
            raise ConfigError(
                "overwriting the output would remove the inputs", where=str(self.store.output), fix="another --output"
            )
        there = [str(path) for path in (self.store.output, failures_path_for(self.store.output)) if path.exists()]
        if there and not (config.overwrite or config.resume_from_cache or config.append):
            also = ", --append adds to it" if config.judge_failed_only else ""
            raise ConfigError(
                "there is an earlier output",
                where=", ".join(there),
                fix=f"--resume continues it, --overwrite removes it{also}, or choose another --output",
            )

    async def check_modes(self, client: ServerClient) -> list[str]:
        """The servers that do not say that stored responses can be verified without their sessions.

        Raises:
            ConfigError: there are some, and `force` is not given.
        """
        if self.config.judge_failed_only:
            return []
        doubtful = []
        for server in sorted(set(self._verifiers.values())):
            mode = await reverify_mode(client, server)
            if mode is not ReverifyMode.STATELESS:
                doubtful.append(f"{server} ({mode.value})")
        if doubtful and not self.config.force:
            raise ConfigError(
                f"these servers do not say that they can verify without the session: {', '.join(doubtful)}",
                where="/reverify_mode",
                fix="--force verifies all the same, into a file whose name begins with 'unsafe_'",
            )
        return doubtful

    async def run(self, client: ServerClient, observers: Sequence[Observer] = ()) -> Reverified:
        """Verify, store each verdict the moment it is known, and score them.

        Raises:
            StoreError: a result could not be written; what was written before is whole.
            AgentFailed: the verdicts are stored, but a server gave no metrics for them.
        """
        tally = Tally()
        attempts = _get_max_rollout_attempts()
        servers = client.global_config_dict
        with self.store:
            if self.config.overwrite and not self.config.resume_from_cache:
                previous.remove(self.store.output)
            history = self.store.history()
            copied = self._copy_scored(history) if self.config.judge_failed_only else 0

            def is_open(job: Job) -> bool:
                tired = self.config.resume_from_cache and history.is_given_up(job.key, attempts)
                return not tired and not history.is_finished(job.key)

            # One try each: calls are repeated where that is safe, and what fails can be resumed.
            await collect(
                (job.again(history.failed_attempts(job.key)) for job in self._jobs(is_open)),
                partial(self._verify, client),
                [tally, *observers],
                at_once=self.config.num_samples_in_parallel or AT_ONCE,
                store=self.store.write,
                terms=Terms(type_of=server_types(servers), rules=_for_verifying(rules_of(servers))),
            )
        entries = [] if self.config.disable_aggregation else await self._aggregate(client)
        return Reverified(tally, entries, len(history.finished), copied)

    def _jobs(self, is_open: Callable[[Job], bool]) -> Iterator[Job]:
        """What is still to be verified, and no more than the limit allows."""
        jobs = filter(is_open, self._stored.jobs(judge_failed_only=self.config.judge_failed_only))
        return islice(jobs, self.config.limit or None)

    def _copy_scored(self, history: History) -> int:
        copied = 0
        for scored in self._stored.scored():
            if not history.is_finished(scored.job.key):
                self.store.write(scored)
                copied += 1
        return copied

    async def _verify(self, client: ServerClient, job: Job) -> Any:
        server = self._verifiers[agent_of(job.row)]
        if not isinstance(job.row.get(RESPONSE_KEY_NAME), dict):
            raise EnvFailed("the stored rollout has no response", where=server)
        try:
            reply = await client.post(server_name=server, url_path="/verify", json=job.row)
            await raise_for_status(reply)
            return await get_response_json(reply)
        except ClientResponseError as error:
            said = getattr(error, "response_content", b"")[:500].decode("utf-8", errors="replace")
            raise EnvFailed(f"/verify answered {error.status}: {said}", where=server) from error

    async def _aggregate(self, client: ServerClient) -> list[Row]:
        async def ask(agent: str, records: list[Row]) -> Row:
            return await ask_server(client, self._verifiers[agent], records)

        entries, failed = await aggregate(
            self.store.records(), ask, failures=read_rows(self.store.failures), asked=self._verifiers.__contains__
        )
        write_metrics(self.store.aggregate_metrics, entries)
        if failed:
            reasons = "; ".join(f"{agent}: {error.problem}" for agent, error in sorted(failed.items()))
            raise AgentFailed(
                f"the verdicts are stored, but there are no metrics ({reasons})", where=str(self.store.output)
            )
        return entries


async def reverify_mode(client: ServerClient, server: str) -> ReverifyMode:
    """What a server says of verifying stored responses; one that says nothing is `unknown`."""
    reply = await client.get(server_name=server, url_path="/reverify_mode")
    try:
        await raise_for_status(reply)
        return ReverifyMode((await get_response_json(reply))["reverify_mode"])
    except (ClientResponseError, ValueError, KeyError, TypeError):
        return ReverifyMode.UNKNOWN


def _for_verifying(rules: Mapping[str, Rule]) -> dict[str, Rule]:
    """The same ranges; whether a model was called was settled when the rollout was played."""
    return {agent: replace(rule, needs_model=False) for agent, rule in rules.items()}
