"""Collect rollouts: send rows to agents, store what comes back, ask for scores.

A seam: trainers call `RolloutCollectionHelper`, server folders import the `NG_*` names, and tests replace
`get_global_config_dict` in this module. The work is done in `nemo_gym.rollouts`.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

from aiohttp import ClientResponseError
from pydantic import Field, field_validator

from nemo_gym.capture.settings import capture_store
from nemo_gym.capture.store import CaptureStore, merge_model_call_capture_into_record
from nemo_gym.catalog.roots import _resolve_under_cwd_or_install
from nemo_gym.config_types import BaseNeMoGymCLIConfig, BaseServerConfig, UploadRolloutsConfigMixin
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
from nemo_gym.prompt import apply_prompt_to_row, load_prompt_config
from nemo_gym.rollout_correlation import maybe_rollout_id_from_run_body
from nemo_gym.rollouts.aggregate import aggregate, write_metrics
from nemo_gym.rollouts.collect import DEFAULT_AT_ONCE, Observer, collect
from nemo_gym.rollouts.completion import Pair, in_completion_order
from nemo_gym.rollouts.job import Job, Row
from nemo_gym.rollouts.jsonl import write_rows
from nemo_gym.rollouts.outcome import Outcome, Scored, record_of
from nemo_gym.rollouts.paths import aggregate_metrics_path_for, materialized_path_for
from nemo_gym.rollouts.plan import PlanOptions, plan, read_lines
from nemo_gym.rollouts.shards import find_shards, merged
from nemo_gym.rollouts.store import RolloutStore
from nemo_gym.rollouts.tally import Tally
from nemo_gym.rollouts.trajectory import trajectory_of
from nemo_gym.rollouts.whom import server_types
from nemo_gym.server_utils import ServerClient, get_response_json, raise_for_status, setup_server_client
from nemo_gym.skills import SkillsConfig, load_skill_directory

logger = logging.getLogger("nemo_gym.rollouts")

MAX_ROLLOUT_ATTEMPTS_ENV_VAR = "NEMO_GYM_MAX_ROLLOUT_ATTEMPTS"
DEFAULT_MAX_ROLLOUT_ATTEMPTS = 3

_parsing_reader = get_global_config_dict
"""What would parse the command line of a process that has no configuration yet; a test's stand-in would not."""

_AtLeastOne = Annotated[int, Field(ge=1)]


class SharedRolloutCollectionConfig(UploadRolloutsConfigMixin, BaseNeMoGymCLIConfig):
    """What every way of collecting rollouts takes."""

    output_jsonl_fpath: str = Field(description="Where scored rollouts are written, one JSON object per line.")
    num_samples_in_parallel: _AtLeastOne | None = Field(
        default=None, description=f"How many rollouts are in flight at once; {DEFAULT_AT_ONCE} when not given."
    )
    responses_create_params: dict[str, Any] = Field(
        default_factory=dict, description="Laid over each row's responses_create_params, top-level keys only."
    )
    disable_aggregation: bool = Field(default=False, description="Do not ask the agents for metrics at the end.")
    rollout_collection_driver: str | None = Field(
        default=None, description="'module.path:function' that collects instead; only in end-to-end runs."
    )


class E2ERolloutCollectionConfig(SharedRolloutCollectionConfig):
    """Collate data, start the servers and collect rollouts."""

    split: Literal["train", "validation", "benchmark"] = Field(description="Which datasets of the agents are run.")
    reuse_existing_data_preparation: bool = Field(default=False, description="Use the datasets collated before.")


class RolloutCollectionConfig(SharedRolloutCollectionConfig):
    """Collect rollouts for the rows of a file from agents that are running."""

    agent_name: str | None = Field(default=None, description="The agent of rows that name none.")
    input_jsonl_fpath: str = Field(description="The rows, one JSON object per line.")
    limit: Annotated[int, Field(ge=0)] | None = Field(default=None, description="Only the first so many rows.")
    num_repeats: _AtLeastOne | dict[str, _AtLeastOne] = Field(
        default=1, description="Rollouts per row; or per agent, with '_default' for agents not named."
    )
    num_repeats_add_seed: bool = Field(default=False, description="Ask the model for seed n in rollout number n.")
    resume_from_cache: bool = Field(default=False, description="Keep what is finished and run the rest.")
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


class RolloutAggregationConfig(BaseNeMoGymCLIConfig):
    """Merge the outputs of sharded runs and compute their metrics together."""

    input_glob: str = Field(description="Glob patterns of the shards, separated by commas.")
    output_jsonl_fpath: str = Field(description="The merged rollouts; metrics are written next to it.")
    merge_shards: bool = Field(default=True, description="Write the merged file, not only the metrics.")


class RolloutCollectionHelper:
    """Collects rollouts from running agents. `observers` are told of every outcome, after it is stored."""

    def __init__(self, *, observers: Sequence[Observer] = ()) -> None:
        self.observers = list(observers)

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
            ConfigError: the rows cannot be sent as they are; nothing was sent or removed.
            StoreError: a result could not be written; what was written before is whole.
            AgentFailed: the rollouts are stored, but an agent gave no metrics for them.
        """
        client = self.setup_server_client()  # first: without servers an earlier output must stay
        store = RolloutStore(config.output_jsonl_fpath)
        jobs = _jobs(config, store)
        tally = Tally()
        with store:
            await collect(
                jobs,
                _sender(client),
                [store.write, tally, *self.observers, *observers],
                at_once=config.num_samples_in_parallel or DEFAULT_AT_ONCE,
                type_of=server_types(client.global_config_dict),
            )
        logger.info("%s: %s", store.output, tally)
        if not config.disable_aggregation:
            await self._aggregate(client, store.records(), store.aggregate_metrics)
        return tally

    async def aggregate_from_config(self, config: RolloutAggregationConfig) -> Path:
        """Merge shards, ask the running agents for metrics over all of them, and return the metrics file."""
        output = Path(config.output_jsonl_fpath)
        shards = find_shards(config.input_glob, output=output)
        if config.merge_shards:
            write_rows(output, merged(shards))
        metrics = aggregate_metrics_path_for(output)
        await self._aggregate(self.setup_server_client(), merged(shards), metrics)
        return metrics

    async def _aggregate(self, client: ServerClient, records: Iterable[Row], path: Path) -> None:
        async def ask(agent: str, group: list[Row]) -> Row:
            return await _ask_for_metrics(client, agent, group)

        entries, failed = await aggregate(records, ask)
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


def _jobs(config: RolloutCollectionConfig, store: RolloutStore) -> Iterator[Job]:
    """The jobs to run: those an earlier run left, or all of them, with earlier results removed."""
    if config.resume_from_cache and store.can_resume():
        attempts = _get_max_rollout_attempts()
        history = store.history()
        rows, done, given_up = store.planned(), len(history.finished), history.given_up(attempts)
        logger.info(
            "resuming: %d rollouts, %d finished, %d given up, %d to run", rows, done, given_up, rows - done - given_up
        )
        return store.unfinished(history, attempts)
    if config.resume_from_cache:
        logger.info("nothing to resume: %s or %s is missing; starting over", store.materialized, store.output)
    source = _resolve_under_cwd_or_install(config.input_jsonl_fpath)
    store.begin(plan(read_lines(source, config.limit), _plan_options(config), source=config.input_jsonl_fpath))
    return store.jobs()


def _plan_options(config: RolloutCollectionConfig) -> PlanOptions:
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
    )


def _sender(client: ServerClient) -> Callable[[Job], Awaitable[Any]]:
    """How a job is sent: to its agent, and with what was observed on the way if that is switched on."""
    observations = capture_store(_process_config())

    async def send(job: Job) -> Any:
        if observations is None:
            return await _run_on_agent(client, job.row)
        rollout_id = maybe_rollout_id_from_run_body(job.row) or str(job.key)
        await asyncio.to_thread(observations.clear, [rollout_id])  # of an attempt that was cut short
        result = await _run_on_agent(client, job.row)
        if isinstance(result, dict):
            await asyncio.to_thread(_add_observations, job, result, observations, rollout_id)
        return result

    return send


def _add_observations(job: Job, result: Row, observations: CaptureStore, rollout_id: str) -> None:
    merge_model_call_capture_into_record(result, observations, rollout_id)
    _attach_trajectory_record(job.row, result)


async def _run_on_agent(client: ServerClient, row: Row) -> Any:
    response = await client.post(server_name=row[AGENT_REF_KEY_NAME]["name"], url_path="/run", json=row)
    await raise_for_status(response)
    return await get_response_json(response)


async def _ask_for_metrics(client: ServerClient, agent: str, records: list[Row]) -> Row:
    try:
        response = await client.post(
            server_name=agent, url_path="/aggregate_metrics", json={"verify_responses": records}
        )
        await raise_for_status(response)
        metrics = await get_response_json(response)
    except ClientResponseError as error:
        said = getattr(error, "response_content", b"")[:500].decode("utf-8", errors="replace")
        raise AgentFailed(f"/aggregate_metrics answered {error.status}: {said}", where=agent) from error
    except ValueError as error:
        raise AgentFailed(f"/aggregate_metrics did not answer with JSON: {error}", where=agent) from error
    if not isinstance(metrics, dict):
        raise AgentFailed("/aggregate_metrics did not answer with an object", where=agent)
    return metrics


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


def _attach_trajectory_record(row: Row, result: Row | None = None) -> Row:
    """Put `ng_trajectory` on a result, in place, if anything was observed, and return the result.

    Called with the result alone, or with the row it answers first; the row's indices are used where the result
    does not have its own.
    """
    target = row if result is None else result
    trajectory = trajectory_of({**row, **target})
    if trajectory is not None:
        target[NG_TRAJECTORY_KEY] = trajectory.model_dump(mode="json")
    return target


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
