"""Collect rollouts: send rows to agents, store what comes back, ask for scores.

A seam: trainers call `RolloutCollectionHelper`, server folders import the `NG_*` names, and tests replace
`get_global_config_dict` in this module. The work is done in `nemo_gym.rollouts`.
"""

import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator

from nemo_gym.capture.settings import capture_store
from nemo_gym.catalog.roots import _resolve_under_cwd_or_install
from nemo_gym.config.secrets import mask_secrets
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import AgentFailed
from nemo_gym.global_config import get_global_config_dict, maybe_get_global_config_dict
from nemo_gym.keys import (
    AGENT_REF_KEY_NAME,
    NG_AGENT_OBSERVATIONS_KEY,
    NG_FAILURE_CLASS_KEY,
    NG_FAILURE_JUDGE_ERROR_KEY,
    NG_MODEL_CALL_CAPTURE_KEY,
    NG_NO_PERSIST_KEY,
    NG_TERMINAL_KEY,
    NG_TRAJECTORY_KEY,
    ROLLOUT_INDEX_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)
from nemo_gym.net import deadline
from nemo_gym.net.allowance import ALLOWANCE_HEADER
from nemo_gym.prompt import apply_prompt_to_row, load_prompt_config
from nemo_gym.rollouts.again import Retries
from nemo_gym.rollouts.aggregate import aggregate, ask_server, write_metrics
from nemo_gym.rollouts.blocks import server_blocks
from nemo_gym.rollouts.collect import DEFAULT_AT_ONCE, Observer, Send, Terms, collect
from nemo_gym.rollouts.completion import Pair, in_completion_order
from nemo_gym.rollouts.config import (
    AtLeastOne,
    E2ERolloutCollectionConfig,
    RolloutAggregationConfig,
    SharedRolloutCollectionConfig,
)
from nemo_gym.rollouts.flight import Flights
from nemo_gym.rollouts.identity import Identity, code_of, servers_of
from nemo_gym.rollouts.job import Job, Row
from nemo_gym.rollouts.jsonl import read_rows, write_rows
from nemo_gym.rollouts.observed import observed
from nemo_gym.rollouts.options import LimitOptions
from nemo_gym.rollouts.outcome import Outcome, Scored, record_of
from nemo_gym.rollouts.paths import aggregate_metrics_path_for, materialized_path_for
from nemo_gym.rollouts.plan import PlanOptions
from nemo_gym.rollouts.planned import Planned
from nemo_gym.rollouts.problems import Agents
from nemo_gym.rollouts.resume import Request, check, prepare_apart
from nemo_gym.rollouts.rules import rules_of
from nemo_gym.rollouts.shards import find_shards, merged
from nemo_gym.rollouts.stop import Stopping
from nemo_gym.rollouts.store import RolloutStore
from nemo_gym.rollouts.tally import Tally
from nemo_gym.rollouts.trajectory import attach_trajectory_record
from nemo_gym.rollouts.whom import server_types
from nemo_gym.server_utils import ServerClient, get_response_json, raise_for_status, setup_server_client
from nemo_gym.skills import SkillsConfig, load_skill_directory

logger = logging.getLogger("nemo_gym.rollouts")

AGENTS = "responses_api_agents"

MAX_ROLLOUT_ATTEMPTS_ENV_VAR = "NEMO_GYM_MAX_ROLLOUT_ATTEMPTS"
DEFAULT_MAX_ROLLOUT_ATTEMPTS = 3

_parsing_reader = get_global_config_dict
"""What would parse the command line of a process that has no configuration yet; a test's stand-in would not."""

_attach_trajectory_record = attach_trajectory_record


class RolloutCollectionConfig(SharedRolloutCollectionConfig):
    """Collect rollouts for the rows of a file from agents that are running."""

    agent_name: str | None = Field(default=None, description="The agent of rows that name none.")
    input_jsonl_fpath: str = Field(description="The rows, one JSON object per line.")
    limit: Annotated[int, Field(ge=0)] | None = Field(default=None, description="Only the first so many rows.")
    num_repeats: AtLeastOne | dict[str, AtLeastOne] = Field(
        default=1, description="Rollouts per row; or per agent, with '_default' for agents not named."
    )
    num_repeats_add_seed: bool = Field(default=False, description="Ask the model for seed n in rollout number n.")
    resume_from_cache: bool = Field(default=False, description="Keep what is finished and run the rest.")
    force_resume: bool = Field(
        default=False, description="Resume although data, configuration or code differ from the run that was begun."
    )
    overwrite: bool = Field(
        default=False, description="Without resuming: remove earlier results instead of keeping them aside."
    )
    prompt_config: str | None = Field(default=None, description="A prompt file that builds the input of every row.")
    skills: SkillsConfig | None = Field(default=None, description="Skills the agents are given.")

    @field_validator("num_repeats", mode="before")
    @classmethod
    def _null_is_one(cls, value: Any) -> Any:
        return 1 if value is None else value

    @property
    def materialized_jsonl_fpath(self) -> Path:
        """Where the rows are written as they are sent, repeats included."""
        return materialized_path_for(self.output_jsonl_fpath)


class RolloutCollectionHelper:
    """Collects rollouts from running agents.

    `observers` are told of every outcome, after it is stored; `on_plan` once, before the first rollout is sent;
    `on_reading` before that, now and then, how many rows were read and which share of the file that is, on another
    thread; `flights` always knows which rollouts are under way.
    """

    def __init__(
        self,
        *,
        observers: Sequence[Observer] = (),
        flights: Flights | None = None,
        on_plan: Callable[[Planned], None] | None = None,
        on_reading: Callable[[int, float], None] | None = None,
    ) -> None:
        self.observers = list(observers)
        self.flights = flights if flights is not None else Flights()
        self.on_plan = on_plan
        self.on_reading = on_reading

    def setup_server_client(self, head_server_config: BaseServerConfig | None = None) -> ServerClient:
        """A client for the servers that the head server knows."""
        return setup_server_client(head_server_config)

    def run_examples(
        self,
        examples: list[Row],
        head_server_config: BaseServerConfig | None = None,
        semaphore: AbstractAsyncContextManager[Any] | None = None,
    ) -> Iterator[Awaitable[Pair]]:
        """One awaitable per row, giving `(row, result)` in the order the results come in.

        A `/run` that fails raises from its own awaitable and concerns no other. With a `semaphore` it alone bounds
        how many rows are in flight; without, a default does.
        """
        client = self.setup_server_client(head_server_config)
        gate = semaphore if semaphore is not None else nullcontext()

        async def send(row: Row) -> Any:
            async with gate:
                return await _run_on_agent(client, row)

        at_once = DEFAULT_AT_ONCE if semaphore is None else max(1, len(examples))
        return in_completion_order(examples, send, at_once=at_once)

    def check(self, config: RolloutCollectionConfig, servers: Mapping[str, Any]) -> None:
        """Raise at once what would end a collection before its first rollout, for those who start servers first.

        `servers` is the configuration they will have. Every row is read, nothing is changed.

        Raises:
            ConfigError: what shall be resumed is another run, or there are no rows, or they cannot be sent as they are.
            StoreError: somebody else collects into this output, or it cannot be written.
        """
        with RolloutStore(config.output_jsonl_fpath) as store:
            check(store, self._watched(_request(config, servers, 1)))

    async def run_from_config(self, config: RolloutCollectionConfig) -> list[Row]:
        """Collect, score and return every result, sorted by (task, rollout).

        Besides all scored ones, also of the run that was resumed, there are the ones that failed this time: they
        have `_ng_failure_class` or `_ng_no_persist` and no reward. Use `collect_from_config` when the results are
        wanted on disk only: this list is as large as the output.
        """
        unscored: list[Row] = []

        def keep(outcome: Outcome) -> None:
            if not isinstance(outcome, Scored):
                unscored.append(record_of(outcome))

        await self.collect_from_config(config, observers=[keep])
        results = [*RolloutStore(config.output_jsonl_fpath).records(), *unscored]
        results.sort(key=lambda result: (result[TASK_INDEX_KEY_NAME], result[ROLLOUT_INDEX_KEY_NAME]))
        return results

    async def collect_from_config(
        self, config: RolloutCollectionConfig, *, observers: Sequence[Observer] = ()
    ) -> Tally:
        """Collect and score, and return how many rollouts ended how. Memory is bounded by what is in flight.

        Raises:
            ConfigError: the rows cannot be sent as they are, or what shall be resumed is another run; nothing was
                sent or removed.
            StoreError: somebody else collects into this output, or a result could not be written; what was written
                before is whole.
            AgentFailed: the rollouts are stored, but an agent gave no metrics for them.
        """
        client = self.setup_server_client()  # first: without servers an earlier output must stay
        servers = client.global_config_dict
        attempts = config.max_rollout_attempts or _get_max_rollout_attempts()
        request = _request(config, servers, attempts)
        terms = Terms(
            type_of=server_types(servers),
            rules=rules_of(servers),
            rollout_seconds=config.rollout_timeout_seconds,
            max_steps=config.max_steps_per_rollout,
            max_tokens=config.max_tokens_per_rollout,
            flights=self.flights,
        )
        tally = Tally()
        with RolloutStore(config.output_jsonl_fpath, sync_seconds=config.sync_seconds) as store:
            prepared = await prepare_apart(store, self._watched(request))
            if self.on_plan is not None:
                self.on_plan(prepared.planned)
            stopping = Stopping(
                max_failures=1 if config.fail_fast else config.max_failures,
                max_tokens=config.max_total_tokens,
                tokens=prepared.tokens,
            )
            await collect(
                prepared.jobs,
                _sender(client, config),
                [tally, *self.observers, *observers],
                at_once=config.num_samples_in_parallel or DEFAULT_AT_ONCE,
                store=store.write,
                terms=terms,
                retries=Retries(max_attempts=attempts, pause_seconds=config.retry_pause_seconds),
                stopping=stopping,
            )
        if stopping.reason is not None:
            tally.stop(stopping.reason, prepared.planned.to_run)
            logger.warning("stopped early: %s; what was not run can be resumed", stopping.reason)
        logger.info("%s: %s", store.output, tally)
        if not config.disable_aggregation:
            await self._aggregate(client, store.records(), store.aggregate_metrics, read_rows(store.failures))
        return tally

    def _watched(self, request: Request) -> Request:
        """`request`, with `on_reading` told how far its rows were read."""
        tell = self.on_reading
        if tell is None or not request.source.is_file():
            return request
        size = max(1, request.source.stat().st_size)
        return replace(request, watch=lambda rows, read: tell(rows, min(1.0, read / size)))

    async def aggregate_from_config(self, config: RolloutAggregationConfig) -> Path:
        """Merge shards, ask the running agents for metrics over all of them, and return the metrics file."""
        output = Path(config.output_jsonl_fpath)
        shards = find_shards(config.input_glob, output=output)
        if config.merge_shards:
            write_rows(output, merged(shards))
        metrics = aggregate_metrics_path_for(output)
        await self._aggregate(self.setup_server_client(), merged(shards), metrics)
        return metrics

    async def _aggregate(
        self, client: ServerClient, records: Iterable[Row], path: Path, failures: Iterable[Row] = ()
    ) -> None:
        entries, failed = await aggregate(records, partial(ask_server, client), failures=failures)
        write_metrics(path, entries)
        for entry in entries:
            logger.info("%s: %s", entry[AGENT_REF_KEY_NAME]["name"], entry["key_metrics"])
        if failed:
            reasons = "; ".join(f"{agent}: {error.problem}" for agent, error in sorted(failed.items()))
            raise AgentFailed(
                f"no metrics from {len(failed)} of {len(failed) + len(entries)} agents ({reasons})",
                where=str(path),
                fix="the rollouts are stored; start the agents and run `gym eval aggregate`",
            )


def _request(config: RolloutCollectionConfig, servers: Mapping[str, Any], max_attempts: int) -> Request:
    """What `config` asks for, with the identity of the run it would begin."""
    options = _plan_options(config, servers)
    identity = Identity(
        rows="",
        plan=mask_secrets(
            {
                "limit": config.limit or None,
                "agent_name": config.agent_name,
                "prompt": load_prompt_config(config.prompt_config).model_dump() if config.prompt_config else None,
                "skills": options.skills_ref["hash"] if options.skills_ref else None,
                "responses_create_params": config.responses_create_params,
                "num_repeats_add_seed": config.num_repeats_add_seed,
            }
        ),
        repeats=config.num_repeats,
        servers=servers_of(servers),
        code=code_of(servers),
        limits=config.model_dump(include=set(LimitOptions.model_fields)),
    )
    return Request(
        source=_resolve_under_cwd_or_install(config.input_jsonl_fpath),
        source_name=config.input_jsonl_fpath,
        limit=config.limit,
        options=options,
        identity=identity,
        resume=config.resume_from_cache,
        force=config.force_resume,
        overwrite=config.overwrite,
        max_attempts=max_attempts,
        limits={"steps": config.max_steps_per_rollout, "tokens": config.max_tokens_per_rollout},
    )


def _plan_options(config: RolloutCollectionConfig, servers: Mapping[str, Any]) -> PlanOptions:
    fill: Callable[[Row, str], Row] | None = None
    if config.prompt_config is not None:
        prompt = load_prompt_config(config.prompt_config)

        def fill(row: Row, where: str) -> Row:
            return apply_prompt_to_row(row, prompt, where=where)

    return PlanOptions(
        agent_name=config.agent_name,
        repeats=config.num_repeats,
        add_seed=config.num_repeats_add_seed,
        overrides=config.responses_create_params,
        skills_ref=load_skill_directory(config.skills.path) if config.skills is not None else None,
        fill_prompt=fill,
        agents=Agents(block.name for block in server_blocks(servers).values() if block.server_type == AGENTS),
    )


def _sender(client: ServerClient, config: RolloutCollectionConfig) -> Send:
    """How a job is sent: to its agent, with its time, which starts here, and what else it may use."""
    seconds = config.rollout_timeout_seconds
    allowed = {ALLOWANCE_HEADER: config.allowance.header_value()}

    async def send(job: Job) -> Any:
        with deadline.within(seconds):
            return await _run_on_agent(client, job.row, headers=allowed)

    captures = capture_store(_process_config())
    return send if captures is None else observed(send, captures)


async def _run_on_agent(client: ServerClient, row: Row, **options: Any) -> Any:
    response = await client.post(server_name=row[AGENT_REF_KEY_NAME]["name"], url_path="/run", json=row, **options)
    await raise_for_status(response)
    return await get_response_json(response)


def _process_config() -> Mapping[str, Any]:
    """This process's configuration, or nothing where none was made (a library user's own process)."""
    if get_global_config_dict is _parsing_reader and maybe_get_global_config_dict() is None:
        return {}
    config: Mapping[str, Any] = get_global_config_dict()
    return config


def _get_max_rollout_attempts() -> int:
    """How often a rollout is tried before it is given up: `NEMO_GYM_MAX_ROLLOUT_ATTEMPTS`, or 3."""
    given = os.environ.get(MAX_ROLLOUT_ATTEMPTS_ENV_VAR)
    if given is None:
        return DEFAULT_MAX_ROLLOUT_ATTEMPTS
    if given.strip().isdecimal() and int(given) >= 1:
        return int(given)
    logger.warning(
        "%s must be a whole number from 1, not %r; using %d",
        MAX_ROLLOUT_ATTEMPTS_ENV_VAR,
        given,
        DEFAULT_MAX_ROLLOUT_ATTEMPTS,
    )
    return DEFAULT_MAX_ROLLOUT_ATTEMPTS


__all__ = [
    "NG_AGENT_OBSERVATIONS_KEY",
    "NG_FAILURE_CLASS_KEY",
    "NG_FAILURE_JUDGE_ERROR_KEY",
    "NG_MODEL_CALL_CAPTURE_KEY",
    "NG_NO_PERSIST_KEY",
    "NG_TERMINAL_KEY",
    "NG_TRAJECTORY_KEY",
    "E2ERolloutCollectionConfig",
    "RolloutAggregationConfig",
    "RolloutCollectionConfig",
    "RolloutCollectionHelper",
    "SharedRolloutCollectionConfig",
    "get_global_config_dict",
]
