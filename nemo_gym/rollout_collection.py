"""Collect rollouts: send rows to agents, store the results, compute scores.

Public entry point: trainers call `RolloutCollectionHelper`, server folders import the `NG_*` names, and tests replace
`get_global_config_dict` in this module. The implementation is in `nemo_gym.rollouts`.
"""

import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator

from nemo_gym.capture.settings import capture_store
from nemo_gym.catalog.roots import _resolve_under_cwd_or_install
from nemo_gym.config.instances import instances_of
from nemo_gym.config.secrets import mask_secrets
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.data.prompt import apply_prompt_to_row, load_prompt_config
from nemo_gym.data.skills import SkillsConfig, load_skill_directory
from nemo_gym.global_config import get_global_config_dict, maybe_get_global_config_dict
from nemo_gym.journal.lines import read_rows
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
from nemo_gym.rollouts.aggregate import aggregate_to_file, fetch_metrics
from nemo_gym.rollouts.attribution import server_types
from nemo_gym.rollouts.capture_join import attach_trajectory_record, with_captures
from nemo_gym.rollouts.collect import (
    DEFAULT_CONCURRENCY,
    AttemptRules,
    InFlight,
    Observer,
    Send,
    StopCondition,
    collect,
)
from nemo_gym.rollouts.completion_order import Pair, in_completion_order
from nemo_gym.rollouts.config import (
    AtLeastOne,
    E2ERolloutCollectionConfig,
    LimitOptions,
    RolloutAggregationConfig,
    SharedRolloutCollectionConfig,
)
from nemo_gym.rollouts.identity import Identity, code_versions, server_fields
from nemo_gym.rollouts.outcome import Job, Outcome, OutcomeCounts, ScoredRollout, outcome_record
from nemo_gym.rollouts.plan import AgentNames, PlanOptions, PlanSummary
from nemo_gym.rollouts.resume import CollectionRequest, check_request, prepare_run_in_thread
from nemo_gym.rollouts.retries import RolloutRetryPolicy
from nemo_gym.rollouts.run_files import materialized_path_for
from nemo_gym.rollouts.scoring_rules import AGENTS, scoring_rules
from nemo_gym.rollouts.store import RolloutStore
from nemo_gym.server_utils import ServerClient, get_response_json, raise_for_status, setup_server_client
from nemo_gym.transport import call_log, deadlines
from nemo_gym.transport.deadlines import ALLOWANCE_HEADER
from nemo_gym.wire.stored_rollout import Row

logger = logging.getLogger("nemo_gym.rollouts")

MAX_ROLLOUT_ATTEMPTS_ENV_VAR = "NEMO_GYM_MAX_ROLLOUT_ATTEMPTS"
DEFAULT_MAX_ROLLOUT_ATTEMPTS = 3

_parsing_reader = get_global_config_dict
"""The original function, which parses the command line if the process has no configuration; tests may replace it."""

_attach_trajectory_record = attach_trajectory_record


class RolloutCollectionConfig(SharedRolloutCollectionConfig):
    """Collect rollouts for the rows of a file from agents that are running."""

    agent_name: str | None = Field(default=None, description="The agent of rows without an agent.")
    input_jsonl_fpath: str = Field(description="The rows, one JSON object per line.")
    limit: Annotated[int, Field(ge=0)] | None = Field(default=None, description="Use only the first N rows.")
    num_repeats: AtLeastOne | dict[str, AtLeastOne] = Field(
        default=1, description="Rollouts per row; or per agent, with '_default' for agents not named."
    )
    num_repeats_add_seed: bool = Field(default=False, description="Request seed n from the model in rollout number n.")
    resume_from_cache: bool = Field(default=False, description="Keep finished rollouts and run the rest.")
    force_resume: bool = Field(
        default=False, description="Resume even if data, configuration or code have changed since the run began."
    )
    overwrite: bool = Field(
        default=False, description="Without resuming: remove earlier results instead of moving them aside."
    )
    prompt_config: str | None = Field(default=None, description="A prompt file that builds the input of every row.")
    skills: SkillsConfig | None = Field(default=None, description="Skills for the agents.")

    @field_validator("num_repeats", mode="before")
    @classmethod
    def _null_is_one(cls, value: Any) -> Any:
        return 1 if value is None else value

    @property
    def materialized_jsonl_fpath(self) -> Path:
        """The file of the rows as they are sent, repeats included."""
        return materialized_path_for(self.output_jsonl_fpath)


class RolloutCollectionHelper:
    """Collect rollouts from running agents.

    `observers` receive every outcome after it is stored. `on_reading` is called periodically, on another thread, with
    the number of rows read so far and the fraction of the file; then `on_plan` is called once with the summary of the
    plan. `in_flight` lists the rollouts in flight.
    """

    def __init__(
        self,
        *,
        observers: Sequence[Observer] = (),
        in_flight: InFlight | None = None,
        on_plan: Callable[[PlanSummary], None] | None = None,
        on_reading: Callable[[int, float], None] | None = None,
    ) -> None:
        self.observers = list(observers)
        self.in_flight = in_flight if in_flight is not None else InFlight()
        self.on_plan = on_plan
        self.on_reading = on_reading

    def setup_server_client(self, head_server_config: BaseServerConfig | None = None) -> ServerClient:
        """Return a client for the servers of the head server."""
        return setup_server_client(head_server_config)

    def run_examples(
        self,
        examples: list[Row],
        head_server_config: BaseServerConfig | None = None,
        semaphore: AbstractAsyncContextManager[Any] | None = None,
    ) -> Iterator[Awaitable[Pair]]:
        """Yield one awaitable per row; they return `(row, result)` in completion order.

        A `/run` that fails raises from one awaitable and affects no other. The rows in flight are limited by
        `semaphore`, or without it by `DEFAULT_CONCURRENCY`.
        """
        client = self.setup_server_client(head_server_config)
        slot = semaphore if semaphore is not None else nullcontext()

        async def send(row: Row) -> Any:
            async with slot:
                return await _run_on_agent(client, row)

        at_once = DEFAULT_CONCURRENCY if semaphore is None else max(1, len(examples))
        return in_completion_order(examples, send, at_once=at_once)

    def check(self, config: RolloutCollectionConfig, servers: Mapping[str, Any]) -> None:
        """Raise the errors that would end a collection before its first rollout; call it before starting servers.

        `servers` is the configuration of the servers. Every row is read; no file is changed.

        Raises:
            ConfigError: the stored run differs from the requested one, or the rows are missing or cannot be sent.
            StoreError: another process collects into this output, or it cannot be written.
        """
        with RolloutStore(config.output_jsonl_fpath) as store:
            check_request(store, self._report_reading(_request(config, servers, 1)))

    async def run_from_config(self, config: RolloutCollectionConfig) -> list[Row]:
        """Collect, score and return every result, sorted by (task, rollout).

        The list has all scored rollouts, including those of a resumed run, and the rollouts that failed in this call,
        which have `_ng_failure_class` or `_ng_no_persist` and no reward. The list is as large as the output; use
        `collect_from_config` if the results are only needed on disk.
        """
        unscored: list[Row] = []

        def add_unscored(outcome: Outcome) -> None:
            if not isinstance(outcome, ScoredRollout):
                unscored.append(outcome_record(outcome))

        await self.collect_from_config(config, observers=[add_unscored])
        results = [*RolloutStore(config.output_jsonl_fpath).records(), *unscored]
        results.sort(key=lambda result: (result[TASK_INDEX_KEY_NAME], result[ROLLOUT_INDEX_KEY_NAME]))
        return results

    async def collect_from_config(
        self, config: RolloutCollectionConfig, *, observers: Sequence[Observer] = ()
    ) -> OutcomeCounts:
        """Collect and score, and return the counts of outcomes. Memory is bounded by the rollouts in flight.

        Raises:
            ConfigError: the rows cannot be sent, or the stored run differs from the requested one; nothing was sent or
                removed.
            StoreError: another process collects into this output, or a result could not be written; earlier results
                are intact.
            AgentFailed: the rollouts are stored, but an agent returned no metrics for them.
        """
        client = self.setup_server_client()  # first, because it raises if no servers run: then no file may change
        servers = client.global_config_dict
        max_attempts = config.max_rollout_attempts or _get_max_rollout_attempts()
        request = _request(config, servers, max_attempts)
        rules = AttemptRules(
            server_type=server_types(servers),
            scoring=scoring_rules(servers),
            rollout_seconds=config.rollout_timeout_seconds,
            max_steps=config.max_steps_per_rollout,
            max_tokens=config.max_tokens_per_rollout,
            in_flight=self.in_flight,
        )
        counts = OutcomeCounts()
        with RolloutStore(config.output_jsonl_fpath, sync_seconds=config.sync_seconds) as store:
            prepared = await prepare_run_in_thread(store, self._report_reading(request))
            if self.on_plan is not None:
                self.on_plan(prepared.summary)
            stop = StopCondition(
                max_failures=1 if config.fail_fast else config.max_failures,
                max_tokens=config.max_total_tokens,
                tokens=prepared.tokens,
            )
            await collect(
                prepared.jobs,
                _sender(client, config),
                [counts, *self.observers, *observers],
                concurrency=config.num_samples_in_parallel or DEFAULT_CONCURRENCY,
                store=store.write,
                rules=rules,
                retries=RolloutRetryPolicy(max_attempts=max_attempts, pause_seconds=config.retry_pause_seconds),
                stop=stop,
            )
        if stop.reason is not None:
            counts.stop(stop.reason, prepared.summary.to_run)
            logger.warning("stopped early: %s; use --resume to run the rest", stop.reason)
        logger.info("%s: %s", store.output, counts)
        if not config.disable_aggregation:
            fetch, failures = partial(fetch_metrics, client), read_rows(store.failures)
            for entry in await aggregate_to_file(store.aggregate_metrics, store.records(), fetch, failures=failures):
                logger.info("%s: %s", entry[AGENT_REF_KEY_NAME]["name"], entry["key_metrics"])
        return counts

    def _report_reading(self, request: CollectionRequest) -> CollectionRequest:
        """Return `request` with an `on_read` that calls `on_reading`."""
        report = self.on_reading
        if report is None or not request.source.is_file():
            return request
        size = max(1, request.source.stat().st_size)
        return replace(request, on_read=lambda rows, read: report(rows, min(1.0, read / size)))


def _request(config: RolloutCollectionConfig, servers: Mapping[str, Any], max_attempts: int) -> CollectionRequest:
    """Build the collection request that `config` describes, with the identity of the run except its row hash."""
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
        servers=server_fields(servers),
        code=code_versions(servers),
        limits=config.model_dump(include=set(LimitOptions.model_fields)),
    )
    return CollectionRequest(
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
    """Build the plan options that `config` describes; prompt and skills are loaded."""
    fill: Callable[[Row, str], Row] | None = None
    if config.prompt_config is not None:
        prompt = load_prompt_config(config.prompt_config)

        def fill(row: Row, location: str) -> Row:
            return apply_prompt_to_row(row, prompt, where=location)

    return PlanOptions(
        agent_name=config.agent_name,
        repeats=config.num_repeats,
        add_seed=config.num_repeats_add_seed,
        overrides=config.responses_create_params,
        skills_ref=load_skill_directory(config.skills.path) if config.skills is not None else None,
        fill_prompt=fill,
        agents=AgentNames(agent.name for agent in instances_of(servers, AGENTS)),
    )


def _sender(client: ServerClient, config: RolloutCollectionConfig) -> Send:
    """Return the function that sends a job to its agent with the rollout deadline, limits and, if on, captures."""
    seconds = config.rollout_timeout_seconds
    headers = {ALLOWANCE_HEADER: config.allowance.header_value()}

    async def send(job: Job) -> Any:
        call_log.set_current_rollout(job.key.rollout_id)
        with deadlines.time_limit(seconds):
            return await _run_on_agent(client, job.row, headers=headers)

    captures = capture_store(_process_config())
    return send if captures is None else with_captures(send, captures)


async def _run_on_agent(client: ServerClient, row: Row, **options: Any) -> Any:
    response = await client.post(server_name=row[AGENT_REF_KEY_NAME]["name"], url_path="/run", json=row, **options)
    await raise_for_status(response)
    return await get_response_json(response)


def _process_config() -> Mapping[str, Any]:
    """Return this process's configuration; empty if it has none, as in a program that uses this as a library."""
    if get_global_config_dict is _parsing_reader and maybe_get_global_config_dict() is None:
        return {}
    config: Mapping[str, Any] = get_global_config_dict()
    return config


def _get_max_rollout_attempts() -> int:
    """Return the maximum attempts per rollout: `NEMO_GYM_MAX_ROLLOUT_ATTEMPTS`, or 3."""
    text = os.environ.get(MAX_ROLLOUT_ATTEMPTS_ENV_VAR)
    if text is None:
        return DEFAULT_MAX_ROLLOUT_ATTEMPTS
    if text.strip().isdecimal() and int(text) >= 1:
        return int(text)
    logger.warning(
        "%s must be a whole number from 1, not %r; using %d",
        MAX_ROLLOUT_ATTEMPTS_ENV_VAR,
        text,
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
