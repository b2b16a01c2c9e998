"""Collect rollouts: send rows to agents, store the results, compute scores.

Public entry point: trainers call `RolloutCollectionHelper`, server folders import the `NG_*` names, and tests replace
`get_global_config_dict` in this module. The implementation is in `nemo_gym.rollouts`.
"""

import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from nemo_gym.config.instances import server_instances
from nemo_gym.config.keys import value_of
from nemo_gym.config.search_roots import _resolve_under_cwd_or_install
from nemo_gym.config.secrets import mask_secrets
from nemo_gym.config_types import BaseNeMoGymCLIConfig, BaseServerConfig, UploadRolloutsConfigMixin
from nemo_gym.data.prompt import load_prompt_config, prompt_filler
from nemo_gym.data.skills import SkillsConfig, load_skill_directory
from nemo_gym.errors import GymError
from nemo_gym.global_config import get_global_config_dict, maybe_get_global_config_dict
from nemo_gym.journal import read_rows
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
from nemo_gym.rollouts.attribution import needed_servers, server_types
from nemo_gym.rollouts.capture_join import attach_trajectory_record, build_trajectory
from nemo_gym.rollouts.collect import (
    AttemptRules,
    InFlight,
    Observer,
    RolloutRetryPolicy,
    collect,
)
from nemo_gym.rollouts.crash_recovery import ServerMonitor
from nemo_gym.rollouts.dispatch import LeaseDispatcher, LeaseOptions, WorkloadPool, dispatching
from nemo_gym.rollouts.example_dispatch import (
    DispatchLatencyTracker,
    DispatchOptions,
    RowAndResult,
    plan_examples,
    route_to_environment,
    send_examples,
)
from nemo_gym.rollouts.limit_options import AtLeastOne, FailureOptions, LimitOptions, VolumeOptions, check_repeats
from nemo_gym.rollouts.outcome import Outcome, OutcomeCounts, ScoredRollout, is_terminal_failure, outcome_record
from nemo_gym.rollouts.plan import AgentNames, PlanOptions, PlanSummary
from nemo_gym.rollouts.resume import CollectionRequest, PreparedRun, check_request, prepare_run_in_thread
from nemo_gym.rollouts.rollout_sender import rollout_sender, run_on_agent
from nemo_gym.rollouts.routing import AgentRoutes
from nemo_gym.rollouts.row_selection import RowSelection, parse_limit
from nemo_gym.rollouts.run_files import materialized_path_for
from nemo_gym.rollouts.run_identity import Identity, code_versions, server_fields
from nemo_gym.rollouts.scoring_rules import AGENTS, scoring_rules
from nemo_gym.rollouts.stop_condition import StopCondition, check_complete, price_table, report_stop
from nemo_gym.rollouts.store import RolloutStore
from nemo_gym.rollouts.token_delivery import TokenDelivery
from nemo_gym.server_utils import ServerClient, setup_server_client
from nemo_gym.transport import http_sessions
from nemo_gym.wire.stored_rollout import Row

logger = logging.getLogger("nemo_gym.rollouts")

MAX_ROLLOUT_ATTEMPTS_ENV_VAR = "NEMO_GYM_MAX_ROLLOUT_ATTEMPTS"
DEFAULT_MAX_ROLLOUT_ATTEMPTS = 3

_original_get_global_config_dict = get_global_config_dict
"""Unlike a function that a test puts in its place, it parses the command line if the process has no configuration."""

_attach_trajectory_record = attach_trajectory_record
_build_trajectory_record = build_trajectory


class SharedRolloutCollectionConfig(
    UploadRolloutsConfigMixin, LimitOptions, FailureOptions, VolumeOptions, BaseNeMoGymCLIConfig
):
    """Options that all commands which collect rollouts have in common."""

    output_jsonl_fpath: str = Field(description="Where scored rollouts are written, one JSON object per line.")
    responses_create_params: dict[str, Any] = Field(
        default_factory=dict, description="Merged over each row's responses_create_params, top-level keys only."
    )
    sync_seconds: Annotated[float, Field(gt=0)] | None = Field(
        default=1.0,
        description="Seconds between syncs of the results to disk: at most this much is lost in a power cut; "
        "null: sync only at the end.",
    )
    disable_aggregation: bool = Field(default=False, description="Do not compute metrics at the end.")
    rollout_collection_driver: str | None = Field(
        default=None, description="'module.path:function' that collects instead; only in end-to-end runs."
    )


class E2ERolloutCollectionConfig(SharedRolloutCollectionConfig):
    """Collate data, start the servers and collect rollouts."""

    split: Literal["train", "validation", "benchmark"] = Field(description="Type of the agents' datasets that are run.")
    reuse_existing_data_preparation: bool = Field(default=False, description="Use datasets that are collated already.")


class RolloutAggregationConfig(BaseNeMoGymCLIConfig):
    """Merge the outputs of sharded runs and compute their metrics together."""

    input_glob: str = Field(description="Glob patterns of the shards, separated by commas.")
    output_jsonl_fpath: str = Field(description="The merged rollouts; metrics are written next to it.")
    merge_shards: bool = Field(default=True, description="Write the merged file, not only the metrics.")


class RolloutCollectionConfig(SharedRolloutCollectionConfig):
    """Collect rollouts for the rows of a file from agents that are running."""

    agent_name: str | None = Field(default=None, description="The agent of rows without an agent.")
    agent_map: dict[str, str] = Field(
        default_factory=dict, description="Agents by the row's agent or task_source, '_default' for all; before theirs."
    )
    fan_out: dict[str, Annotated[list[str], Field(min_length=1)]] = Field(
        default_factory=dict, description="Several agents by the row's agent or task_source; each runs the row."
    )
    input_jsonl_fpath: str = Field(description="The rows, one JSON object per line.")
    limit: Annotated[int, Field(ge=0)] | str | None = Field(
        default=None, description="Use only the first N rows, or with `10-20` the tenth to the twentieth; 0: all rows."
    )
    limit_per_agent: bool = Field(default=False, description="Apply the limit to the rows of each agent.")
    where: str | None = Field(default=None, description="Use only rows that fulfil this comparison of their fields.")
    ids: list[str | int] = Field(default=[], description="Use only rows with these ids or task numbers.")
    tasks: list[int] | None = Field(default=None, description="Use only the rows with these task numbers.")
    shuffle: bool = Field(default=False, description="Use the rows in random order.")
    shuffle_seed: int | None = Field(default=None, description="Seed of the random order; default: 0.")
    num_repeats: AtLeastOne | dict[str, AtLeastOne] = Field(
        default=1, description="Rollouts per row; or per agent, with '_default' for agents not named."
    )
    prices: dict[str, Any] = Field(default={}, description="The price table, for max_total_cost.")
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

    @field_validator("limit")
    @classmethod
    def _check_limit(cls, value: int | str | None) -> int | str | None:
        if isinstance(value, str):
            parse_limit(value)  # for its error
        return value

    @property
    def selection(self) -> RowSelection:
        """The rows that are used."""
        return RowSelection(
            limit=self.limit,
            is_limit_per_agent=self.limit_per_agent,
            where=self.where,
            ids=tuple(map(str, self.ids)),
            tasks=None if self.tasks is None else tuple(self.tasks),
            shuffle_seed=(self.shuffle_seed or 0) if self.shuffle else None,
        )

    @field_validator("num_repeats", mode="before")
    @classmethod
    def _check_repeats(cls, value: Any) -> Any:
        return check_repeats(value)

    @property
    def materialized_jsonl_fpath(self) -> Path:
        """The file of the rows as they are sent, repeats included."""
        return materialized_path_for(self.output_jsonl_fpath)


class RolloutCollectionHelper:
    """Collect rollouts from running agents.

    `observers` receive every outcome after it is stored. `on_reading` is called periodically, on another thread, with
    the number of rows read so far and the fraction of the file; then `on_plan` is called once with the summary of the
    plan. `in_flight` lists the rollouts in flight. `monitor` knows the crashes of the servers. With a `pool` of nodes,
    rollouts run on all of them.
    """

    def __init__(
        self,
        *,
        observers: Sequence[Observer] = (),
        in_flight: InFlight | None = None,
        on_plan: Callable[[PlanSummary], None] = lambda _: None,
        on_reading: Callable[[int, float], None] = lambda _rows, _fraction: None,
        monitor: ServerMonitor | None = None,
        pool: WorkloadPool | None = None,
    ) -> None:
        self.monitor = monitor
        self.pool = pool
        self.dispatcher: LeaseDispatcher | None = None
        """With a pool: leases rollouts to the nodes; it has their statistics."""
        self.observers = list(observers)
        self.in_flight = in_flight if in_flight is not None else InFlight()
        self.on_plan = on_plan
        self.on_reading = on_reading

    def setup_server_client(self, head_server_config: BaseServerConfig | None = None) -> ServerClient:
        """Return a client for the servers of the head server."""
        return setup_server_client(head_server_config)

    @staticmethod
    def preprocess_examples(
        examples: list[Row],
        *,
        agent_map: Mapping[str, str] | None = None,
        fan_out: Mapping[str, list[str]] | None = None,
        num_repeats: int | dict[str, int] = 1,
        num_repeats_add_seed: bool = False,
        global_config_dict: Mapping[Any, Any] | None = None,
    ) -> list[Row]:
        """Return one row per rollout, with its agent and numbers; default configuration: that of this process."""
        config = _process_config() if global_config_dict is None else global_config_dict
        return plan_examples(
            examples,
            agent_map=agent_map,
            fan_out=fan_out,
            num_repeats=num_repeats,
            num_repeats_add_seed=num_repeats_add_seed,
            config=config,
        )

    def run_examples(
        self,
        examples: list[Row],
        head_server_config: BaseServerConfig | None = None,
        semaphore: AbstractAsyncContextManager[Any] | None = None,
        route_failures_to_sidecar: bool = False,
        environment_server_name: str | None = None,
        *,
        max_resident_tasks: int | None = None,
        dispatch_budget_s: float | None = None,
        drain_margin_s: float | None = None,
        latency_tracker: DispatchLatencyTracker | None = None,
    ) -> Iterator[Awaitable[RowAndResult]]:
        """Yield one awaitable per row; they return `(row, result)` in completion order.

        A `/run` that fails raises from one awaitable and affects no other; with `route_failures_to_sidecar` it returns
        a result without reward. All rows are in flight together unless `semaphore` or `max_resident_tasks` limits
        them. Closing the iterator cancels the rest, also at the servers. From `drain_margin_s` before the end of
        `dispatch_budget_s` on, rows are not sent: their results have `_ng_dispatch_drained` and no reward.
        """
        client = self.setup_server_client(head_server_config)
        http_sessions.configure_once(client.global_config_dict)  # a trainer may have read no configuration itself
        tokens = TokenDelivery.from_config(client.global_config_dict)
        options = DispatchOptions(
            slots=semaphore if semaphore is not None else nullcontext(),
            failures_as_rows=route_failures_to_sidecar,
            max_resident_tasks=max_resident_tasks,
            budget_seconds=dispatch_budget_s,
            margin_seconds=drain_margin_s,
            tracker=latency_tracker or DispatchLatencyTracker(),
        )
        if environment_server_name is not None:
            examples = route_to_environment(examples, environment_server_name, client.global_config_dict)
        run = partial(run_on_agent, client)
        return send_examples(examples, run if tokens is None else partial(tokens.run_row, run=run), options)

    def check(self, config: RolloutCollectionConfig, servers: Mapping[str, Any]) -> None:
        """Raise the errors that would end a collection before its first rollout; call it before starting servers.

        `servers` is the configuration of the servers. Every row is read; no file is changed.

        Raises:
            ConfigError: the stored run differs from the requested one, or the rows are missing or cannot be sent.
            StoreError: another process collects into this output, or it cannot be written.
        """
        TokenDelivery.check(servers)
        price_table(config)
        with RolloutStore(config.output_jsonl_fpath) as store:
            check_request(store, self._request(config, servers, max_attempts=1))

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

        if not config.retain_results_in_memory:
            await self.collect_from_config(config)
            return []
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
        servers = _servers_config(client)
        max_attempts = config.max_rollout_attempts or get_max_rollout_attempts()
        request = self._request(config, servers, max_attempts)
        counts = OutcomeCounts()
        tokens = TokenDelivery.from_config(servers) if self.pool is None else None  # with a pool, nodes deliver them
        async with tokens or nullcontext():
            with RolloutStore(config.output_jsonl_fpath, sync_seconds=config.sync_seconds, on_sync=tokens) as store:
                prepared = await prepare_run_in_thread(store, request)
                self.on_plan(prepared.summary)
                stop = _stop_condition(config, prepared, store)
                leases = LeaseOptions(
                    concurrency=config.concurrency,
                    planned=prepared.summary.to_run,
                    is_speculative=bool(value_of(servers, "speculative_copies")),
                    limits=config.model_dump(include=set(LimitOptions.model_fields)),
                )
                async with dispatching(self.pool, leases, self.in_flight) as self.dispatcher:
                    await collect(
                        prepared.jobs,
                        rollout_sender(client, config, _process_config(), tokens),
                        [counts, *self.observers, *observers, *([tokens] if tokens is not None else [])],
                        concurrency=config.concurrency,
                        store=store.write,
                        rules=self.attempt_rules(config, servers),
                        retries=RolloutRetryPolicy(max_attempts=max_attempts, pause_seconds=config.retry_pause_seconds),
                        stop=stop,
                        answered_job=prepared.answered_job,
                        attempt_job=self.dispatcher.attempt if self.dispatcher is not None else None,
                    )
        report_stop(stop, counts, prepared.summary, servers)
        logger.info("%s: %s", store.output, counts)
        if not config.disable_aggregation:
            try:
                await _aggregate(client, store)
            except GymError as error:
                if not stop.lost_servers:  # a server that ended computes no metrics
                    raise
                logger.warning("no metrics were computed: %s", error)
        if config.require_complete:
            check_complete(counts, prepared.summary)
        return counts

    def attempt_rules(self, config: LimitOptions, servers: Mapping[str, Any]) -> AttemptRules:
        """Return the rules by which the attempts of a run are classified."""
        return AttemptRules(
            server_type=server_types(servers),
            scoring=scoring_rules(servers),
            rollout_seconds=config.rollout_timeout_seconds,
            max_steps=config.max_steps_per_rollout,
            max_tokens=config.max_tokens_per_rollout,
            in_flight=self.in_flight,
            needed_servers=needed_servers(servers),
            monitor=self.monitor if self.pool is None else None,  # each node attributes crashes to their rollouts
        )

    def _request(
        self, config: RolloutCollectionConfig, servers: Mapping[str, Any], max_attempts: int
    ) -> CollectionRequest:
        """Build the collection request that `config` describes, with the identity of the run except its row hash."""
        prompt = load_prompt_config(config.prompt_config) if config.prompt_config is not None else None
        skills_ref = load_skill_directory(config.skills.path) if config.skills is not None else None
        identity = Identity(
            rows="",  # the hash is computed when the rows are read
            plan=mask_secrets(
                {
                    "limit": config.limit or None,
                    **({} if config.selection.is_plain else {"selection": config.selection.identity()}),
                    "agent_name": config.agent_name,
                    **{key: value for key in ("agent_map", "fan_out") if (value := getattr(config, key))},
                    "prompt": prompt.model_dump() if prompt is not None else None,
                    "skills": skills_ref.hash if skills_ref is not None else None,
                    "responses_create_params": config.responses_create_params,
                    "num_repeats_add_seed": config.num_repeats_add_seed,
                }
            ),
            repeats=config.num_repeats,
            servers=server_fields(servers),
            code=code_versions(servers),
            limits=config.model_dump(include=set(LimitOptions.model_fields)),
        )
        instances = server_instances(servers)
        agents = [instance.name for instance in instances.values() if instance.server_type == AGENTS]
        options = PlanOptions(
            agent_name=config.agent_name,
            routes=AgentRoutes.from_options(config, servers),
            repeats=config.num_repeats,
            add_seed=config.num_repeats_add_seed,
            overrides=config.responses_create_params,
            skills_ref=skills_ref.model_dump() if skills_ref is not None else None,
            fill_prompt=prompt_filler(prompt) if prompt is not None else None,
            agents=AgentNames(agents) if agents else None,
        )
        return CollectionRequest(
            source=_resolve_under_cwd_or_install(config.input_jsonl_fpath),
            source_name=config.input_jsonl_fpath,
            selection=config.selection,
            options=options,
            identity=identity,
            resume=config.resume_from_cache,
            force=config.force_resume,
            overwrite=config.overwrite,
            max_attempts=max_attempts,
            retry_terminal=config.max_rollout_attempts is not None,
            on_read=self.on_reading,
            limits={"steps": config.max_steps_per_rollout, "tokens": config.max_tokens_per_rollout},
        )


def _stop_condition(config: RolloutCollectionConfig, prepared: PreparedRun, store: RolloutStore) -> StopCondition:
    """Return the condition of an early stop; a resumed run starts with the tokens and costs of the earlier parts."""
    stop = StopCondition(
        max_failures=1 if config.fail_fast else config.max_failures,
        max_tokens=config.max_total_tokens,
        tokens=prepared.tokens,
        max_cost=config.max_total_cost,
        prices=price_table(config),
    )
    if stop.max_cost is not None and prepared.summary.resumed:
        stop.add_costs(chain(store.records(), read_rows(store.failures)))
    return stop


async def _aggregate(client: ServerClient, store: RolloutStore) -> None:
    """Compute the metrics of an output with the metrics of its agents, and write them beside it."""
    fetch, failures = partial(fetch_metrics, client), read_rows(store.failures)
    for entry in await aggregate_to_file(store.aggregate_metrics, store.records(), fetch, failures=failures):
        logger.info("%s: %s", entry[AGENT_REF_KEY_NAME]["name"], entry["key_metrics"])


def _servers_config(client: Any) -> Mapping[str, Any]:
    """Return the configuration of the servers; this process's own if the client is a mock of a test."""
    config = getattr(client, "global_config_dict", None)
    return config if isinstance(config, Mapping) else _process_config()


def _process_config() -> Mapping[str, Any]:
    """Return this process's configuration; empty if it has none, as in a program that uses this as a library."""
    if get_global_config_dict is _original_get_global_config_dict and maybe_get_global_config_dict() is None:
        return {}
    config: Mapping[str, Any] = get_global_config_dict()
    return config


def get_max_rollout_attempts() -> int:
    """Return the maximum attempts per rollout: `NEMO_GYM_MAX_ROLLOUT_ATTEMPTS`, or 3."""
    name, default = MAX_ROLLOUT_ATTEMPTS_ENV_VAR, DEFAULT_MAX_ROLLOUT_ATTEMPTS
    text = os.environ.get(name, str(default))
    if text.strip().isdecimal() and int(text) >= 1:
        return int(text)
    logger.warning("%s must be a whole number from 1, not %r; using %d", name, text, default)
    return default


_get_max_rollout_attempts = get_max_rollout_attempts
__all__ = [
    "NG_AGENT_OBSERVATIONS_KEY",
    "NG_FAILURE_CLASS_KEY",
    "NG_FAILURE_JUDGE_ERROR_KEY",
    "NG_MODEL_CALL_CAPTURE_KEY",
    "NG_NO_PERSIST_KEY",
    "NG_TERMINAL_KEY",
    "NG_TRAJECTORY_KEY",
    "DispatchLatencyTracker",
    "E2ERolloutCollectionConfig",
    "RolloutAggregationConfig",
    "RolloutCollectionConfig",
    "RolloutCollectionHelper",
    "SharedRolloutCollectionConfig",
    "get_global_config_dict",
    "is_terminal_failure",
]
