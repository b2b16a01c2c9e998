"""Send rows for a trainer: `RolloutCollectionHelper.run_examples` and `preprocess_examples`."""

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import aiohttp

from nemo_gym.config.dataset_agents import environment_server_agents
from nemo_gym.config.instances import server_instances
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.keys import AGENT_REF_KEY_NAME, AGENTS, NG_FAILURE_CLASS_KEY, NG_NO_PERSIST_KEY, RESPONSE_KEY_NAME
from nemo_gym.rollouts.collect import in_completion_order
from nemo_gym.rollouts.plan import AgentNames, PlanOptions, Repeats, plan_jobs
from nemo_gym.rollouts.routing import AgentRoutes
from nemo_gym.transport.event_loop import is_cancelled
from nemo_gym.wire.stored_rollout import REWARD_KEY, Row

RowAndResult = tuple[Row, Any]
RunRow = Callable[[Row], Awaitable[Any]]

KEPT_DURATIONS = 10_000
COMPLETIONS_FOR_MARGIN = 5
MAX_FAILURE_CHARACTERS = 2000
_NOT_OF_THE_AGENT = frozenset({429, 502, 503, 504})
"""Statuses that a busy or missing server answers before the agent has run."""


class DispatchLatencyTracker:
    """The durations of the latest finished rollouts, and the number of rows that were not sent."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=KEPT_DURATIONS)
        self._completed = 0
        self._drained = 0

    def record(self, seconds: float) -> None:
        """Add the duration of a finished rollout."""
        self._seconds.append(seconds)
        self._completed += 1

    def record_drained(self) -> None:
        """Count a row that was not sent because the budget was spent."""
        self._drained += 1

    def quantile(self, fraction: float) -> float | None:
        """Return the duration that this fraction of the rollouts does not exceed; None without rollouts."""
        if not 0.0 <= fraction <= 1.0:
            raise ValueError(f"a quantile is a number from 0 to 1, not {fraction}")
        ordered = sorted(self._seconds)
        return ordered[min(int(fraction * len(ordered)), len(ordered) - 1)] if ordered else None

    def drain_margin(self) -> float:
        """Return the time that a rollout needs, its 75 % quantile; 0 before five rollouts are finished."""
        return (self.quantile(0.75) or 0.0) if self._completed >= COMPLETIONS_FOR_MARGIN else 0.0

    def summary(self) -> dict[str, Any]:
        """Return the counts and the quantiles in seconds."""
        quantiles = {f"p{round(100 * fraction)}_seconds": self.quantile(fraction) for fraction in (0.5, 0.75, 0.95)}
        return {"completed": self._completed, "drained": self._drained, **quantiles}


@dataclass(kw_only=True)
class DispatchOptions:
    """How rows are sent: see `send_examples`."""

    slots: AbstractAsyncContextManager[Any]
    """Entered while a row is sent; a semaphore limits the rows in flight."""
    failures_as_rows: bool = False
    """A call that fails is a result without reward instead of an exception."""
    max_resident_tasks: int | None = None
    """Maximum number of asyncio tasks; None: one for each row."""
    budget_seconds: float | None = None
    """Time after which no row is sent; the rest is returned as drained."""
    margin_seconds: float | None = None
    """Time before the end of the budget from which no row is sent; None: that of the tracker."""
    tracker: DispatchLatencyTracker = field(default_factory=DispatchLatencyTracker)

    def __post_init__(self) -> None:
        if self.max_resident_tasks is not None and self.max_resident_tasks < 1:
            raise ConfigError(f"a whole number from 1, not {self.max_resident_tasks}", where="max_resident_tasks")
        for name, value in (("dispatch_budget_s", self.budget_seconds), ("drain_margin_s", self.margin_seconds)):
            if value is not None and not value >= 0:
                raise ConfigError(f"a number of seconds from 0, not {value}", where=name)

    def margin(self) -> float:
        """Return the time before the end of the budget from which no row is sent."""
        return self.tracker.drain_margin() if self.margin_seconds is None else self.margin_seconds


def send_examples(rows: Sequence[Row], run: RunRow, options: DispatchOptions) -> Iterator[Awaitable[RowAndResult]]:
    """Yield one awaitable per row; the n-th returns the n-th `(row, result)` to arrive.

    Rows start in their order. Closing the iterator cancels the rest.
    """
    started = time.monotonic()

    async def send(row: Row) -> RowAndResult:
        async with options.slots:
            if options.budget_seconds is not None:
                margin = (
                    options.margin_seconds if options.margin_seconds is not None else options.tracker.drain_margin()
                )
                if time.monotonic() - started + margin >= options.budget_seconds:
                    options.tracker.record_drained()
                    return row, drained_result(row, options.budget_seconds)
            begin = time.monotonic()
            result = await (_run_or_failure(run, row) if options.failures_as_rows else run(row))
            options.tracker.record(time.monotonic() - begin)
            return row, result

    if options.max_resident_tasks is None:
        return in_completion_order(map(send, rows))
    return _with_workers(rows, send, options.max_resident_tasks)


def _with_workers(
    rows: Sequence[Row], send: Callable[[Row], Awaitable[RowAndResult]], workers: int
) -> Iterator[Awaitable[RowAndResult]]:
    """Send the rows with a limited number of tasks; otherwise like `in_completion_order`."""
    remaining = iter(rows)
    results: asyncio.Queue[RowAndResult | BaseException] = asyncio.Queue()

    async def work() -> None:
        for row in remaining:
            try:
                results.put_nowait(await send(row))
            except asyncio.CancelledError as error:
                if is_cancelled():  # the iterator was closed; otherwise the code of the row raised it
                    raise
                results.put_nowait(error)
            except Exception as error:
                results.put_nowait(error)

    async def take() -> RowAndResult:
        result = await results.get()
        if isinstance(result, BaseException):
            raise result
        return result

    tasks = [asyncio.ensure_future(work()) for _ in range(min(workers, len(rows)))]
    try:
        for _ in rows:
            yield take()
    except GeneratorExit:
        for task in tasks:
            task.cancel()
        raise


def _without_result(row: Row) -> Row:
    """Return the fields of a row without a reward and a response: it may be the record of an earlier rollout."""
    return {name: value for name, value in row.items() if name not in (REWARD_KEY, RESPONSE_KEY_NAME)}


def drained_result(row: Row, budget_seconds: float) -> Row:
    """Return the result of a row that was not sent; it has no reward and is not stored."""
    return {
        **_without_result(row),
        NG_FAILURE_CLASS_KEY: "cancelled",
        NG_NO_PERSIST_KEY: True,
        "_ng_dispatch_drained": True,
        "error_message": f"not sent: the dispatch budget of {budget_seconds:g} s was spent",
    }


async def _run_or_failure(run: RunRow, row: Row) -> Any:
    try:
        return await run(row)
    except (aiohttp.ClientError, TimeoutError, ValueError, GymError) as error:
        return failure_result(row, error)


def failure_result(row: Row, error: Exception) -> Row:
    """Return the result of a row whose `/run` failed; it has no reward."""
    status = error.status if isinstance(error, aiohttp.ClientResponseError) else None
    has_run = status is not None and status not in _NOT_OF_THE_AGENT
    body = getattr(error, "response_content", None)
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    return {
        **_without_result(row),
        NG_FAILURE_CLASS_KEY: "agent_run_error" if has_run else "agent_request_failed",
        "_ng_failure_type": type(error).__name__,
        "_ng_failure_message": str(error)[:MAX_FAILURE_CHARACTERS],
        **({"_ng_failure_http_status": status} if status is not None else {}),
        **({"_ng_failure_response_body": text[:MAX_FAILURE_CHARACTERS]} if isinstance(text, str) else {}),
    }


def route_to_environment(rows: Iterable[Row], name: str, config: Mapping[Any, Any]) -> list[Row]:
    """Return the rows with a reference to the agent of the environment server `name`."""
    agents = environment_server_agents(config)
    if name not in agents:
        fix = f"one of {', '.join(agents)}" if agents else "add a block of environment_servers"
        raise ConfigError(f"no environment server is named {name!r}", where="environment_server_name", fix=fix)
    return [{**row, AGENT_REF_KEY_NAME: {"type": AGENTS, "name": agents[name]}} for row in rows]


def plan_examples(
    examples: Sequence[Row],
    *,
    agent_map: Mapping[str, str] | None,
    fan_out: Mapping[str, list[str]] | None,
    num_repeats: Repeats,
    num_repeats_add_seed: bool,
    config: Mapping[Any, Any],
) -> list[Row]:
    """Return one row per rollout, with its agent, task index and rollout index, as a collection sends them.

    Raises:
        InputRowsError: a row has no agent, or not the form of a row.
    """
    options_of_rows = SimpleNamespace(agent_name=None, agent_map=agent_map or {}, fan_out=fan_out or {})
    agents = [instance.name for instance in server_instances(config).values() if instance.server_type == AGENTS]
    options = PlanOptions(
        routes=AgentRoutes.from_options(options_of_rows, config),
        repeats=num_repeats,
        add_seed=num_repeats_add_seed,
        agents=AgentNames(agents) if agents else None,
    )
    lines = ((number, json.dumps(row).encode()) for number, row in enumerate(examples, start=1))
    return [job.row for job in plan_jobs(lines, options, source="examples")]
