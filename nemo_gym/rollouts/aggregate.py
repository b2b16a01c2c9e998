"""Scores per agent: computed from records in one pass, with the metrics of servers that define their own."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO

import orjson
from aiohttp import ClientResponse, ClientResponseError

from nemo_gym.catalog.atomic_files import whole_file
from nemo_gym.errors import AgentFailed, ConfigError, GymError, ServerUnreachable
from nemo_gym.journal import StoreError
from nemo_gym.keys import (
    AGENT_REF_KEY_NAME,
    NG_AGENT_OBSERVATIONS_KEY,
    NG_MODEL_CALL_CAPTURE_KEY,
    NG_TRAJECTORY_KEY,
    RESPONSE_KEY_NAME,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
)
from nemo_gym.metrics.aggregate import RolloutRowsError, RolloutStats, mean_metrics, row_indices
from nemo_gym.metrics.answer_totals import AnswerTotals
from nemo_gym.metrics.scores import ATTRITION, SCORES, compute_attrition, compute_scores
from nemo_gym.rollouts.attribution import response_text
from nemo_gym.server_utils import ServerClient, get_response_json, raise_for_status
from nemo_gym.transport.error_causes import innermost_cause
from nemo_gym.wire.stored_rollout import RolloutKey, Row, StoredRollout

_LARGE_FIELDS = frozenset(
    {
        RESPONSE_KEY_NAME,
        RESPONSES_CREATE_PARAMS_KEY_NAME,
        NG_AGENT_OBSERVATIONS_KEY,
        NG_MODEL_CALL_CAPTURE_KEY,
        NG_TRAJECTORY_KEY,
    }
)

UNNAMED_AGENT = "agent"
METRICS_PATH = "/aggregate_metrics"
AGENT_METRICS = "agent_metrics"
KEY_METRICS = "key_metrics"
GROUP_METRICS = "group_level_metrics"
SUBSETS = "subsets"
MAX_SUBSETS = 1000

FetchMetrics = Callable[[str, list[Row]], Awaitable[Row]]
"""Sends an agent its records and returns the metrics that its server computes from them."""


def strip_conversation(record: Row) -> Row:
    """Return a record with only the fields that metrics need: without its conversation, but with its token usage."""
    stripped = {name: value for name, value in record.items() if name not in _LARGE_FIELDS}
    usage = StoredRollout(record).usage
    if usage:
        stripped[RESPONSE_KEY_NAME] = {"usage": usage}
    return stripped


class SubsetField:
    """Callable that returns the subset of a record: the value of a field, maybe nested (`verifier_metadata.level`)."""

    def __init__(self, field: str) -> None:
        self.field = field
        self._path = field.split(".")
        self._values: set[str] = set()
        self._record_fields: tuple[str, ...] = ()  # of the last record without a value, for the error

    def __call__(self, record: Mapping[str, Any]) -> str | None:
        """Return the subset of a record, or None if the field is missing, empty, an object or a list."""
        value: Any = record
        for name in self._path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is None or isinstance(value, dict | list) or value == "":
            self._record_fields = tuple(record)
            return None
        text = str(value)
        if text not in self._values:
            self._values.add(text)
            if len(self._values) > MAX_SUBSETS:
                raise ConfigError(
                    f"'{self.field}' has more than {MAX_SUBSETS} values", fix="choose a field with fewer values"
                )
        return text

    def check(self, location: str) -> None:
        """Raise ConfigError if no record so far has a value in the field."""
        if not self._values:
            close = get_close_matches(self.field, self._record_fields, n=1)
            listed = ", ".join(name for name in self._record_fields if not name.startswith("_ng_"))
            raise ConfigError(
                f"no rollout has a value in '{self.field}'",
                where=location,
                fix=close[0] if close else f"one of {listed}",
            )


class AgentRollouts:
    """The statistics of one agent's rollouts and, with `keep_rows`, the stripped records to send to its server."""

    def __init__(self, *, keep_rows: bool) -> None:
        self.stats = RolloutStats()
        self.answers = AnswerTotals()
        self.subsets: dict[str, RolloutStats] = {}
        self.rows: list[Row] | None = [] if keep_rows else None

    def add(self, record: Row, subset: str | None) -> None:
        """Add one record to the agent's statistics and, if `subset` is given, to the statistics of that subset."""
        record_numbers = self.stats.add(record)
        if record_numbers is not None:
            self.answers.add_scored(record)
        if subset is not None and record_numbers is not None:
            subset_stats = self.subsets.get(subset)
            if subset_stats is None:
                subset_stats = self.subsets[subset] = RolloutStats(self.stats)
            subset_stats.scored[self.stats.last_id] = record_numbers  # shared, not computed again
        if self.rows is not None:
            self.rows.append(strip_conversation(record))


class RolloutsByAgent:
    """The rollouts of each agent, added one at a time. Memory holds their numbers, not the records.

    Stripped records are kept only for the agents that `has_own_metrics` selects. `subset_of` returns the subset of a
    record, or None.
    """

    def __init__(
        self,
        *,
        has_own_metrics: Callable[[str], bool] = lambda _: False,
        subset_of: Callable[[Row], str | None] = lambda _: None,
    ) -> None:
        self.agents: dict[str | None, AgentRollouts] = {}
        self._has_own_metrics = has_own_metrics
        self._subset_of = subset_of

    def add(self, record: Row) -> None:
        """Add a scored record."""
        self._rollouts_of(StoredRollout(record).agent).add(record, self._subset_of(record))

    def add_failure(self, record: Row) -> None:
        """Add a failure, which counts unless its rollout is also added as scored; other records are ignored.

        Raises:
            RolloutRowsError: the record has no key.
        """
        stored = StoredRollout(record)
        failure_class = stored.failure_class
        if failure_class is None or stored.is_cancelled:
            return
        try:
            task, rollout = RolloutKey.of(record).rollout_id
        except ValueError as error:
            raise RolloutRowsError(f"a failure has no rollout key: {error}") from error
        rollouts = self._rollouts_of(stored.agent)
        rollouts.stats.add_failure(task, rollout, failure_class)
        rollouts.answers.add_tokens(stored)

    def _rollouts_of(self, agent: str | None) -> AgentRollouts:
        rollouts = self.agents.get(agent)
        if rollouts is None:
            keep_rows = agent is not None and self._has_own_metrics(agent)
            rollouts = self.agents[agent] = AgentRollouts(keep_rows=keep_rows)
        return rollouts


def metrics_entry(agent: str | None, rollouts: AgentRollouts, answer: Row | None = None) -> Row:
    """Build the metrics entry of an agent: its metrics from `answer` if its server computed them, and its scores.

    Without `answer`, `group_level_metrics` is an iterator, so that the metrics of many tasks are not held in memory.
    """
    entry: Row = {AGENT_REF_KEY_NAME: {"name": agent or UNNAMED_AGENT}}
    if answer is None:
        metrics = rollouts.stats.metrics()
        entry |= {AGENT_METRICS: metrics, KEY_METRICS: mean_metrics(metrics), GROUP_METRICS: rollouts.stats.groups()}
    else:
        for key, empty in ((AGENT_METRICS, {}), (KEY_METRICS, {}), (GROUP_METRICS, [])):
            entry[key] = answer.get(key, empty)
    # Without metrics from the server (for example, because rollouts were not verified) there are no scores either.
    has_scores = answer is None or bool(entry[AGENT_METRICS])
    entry |= {
        SCORES: compute_scores(rollouts.stats) if has_scores else {},
        ATTRITION: compute_attrition(rollouts.stats),
        **rollouts.answers.fields(),
    }
    if rollouts.subsets and has_scores:
        entry[SUBSETS] = {subset: compute_scores(stats) for subset, stats in sorted(rollouts.subsets.items())}
    return entry


async def aggregate_to_file(
    path: Path,
    records: Iterable[Row],
    fetch: FetchMetrics,
    *,
    failures: Iterable[Row] = (),
    has_own_metrics: Callable[[str], bool] = lambda _: True,
) -> list[Row]:
    """Write one entry per agent to `path`, in the order of their first records, and return the entries.

    `fetch` is called for the agents that `has_own_metrics` selects. The metrics of the other agents are computed here.

    Raises:
        AgentFailed: an agent returned no metrics; the entries of the others are written.
    """
    by_agent = RolloutsByAgent(has_own_metrics=has_own_metrics)
    for record in records:
        by_agent.add(record)
    for record in failures:
        by_agent.add_failure(record)
    entries, errors = await metrics_entries(by_agent, fetch)
    write_metrics(path, entries)
    if errors:
        reasons = "; ".join(f"{agent}: {error.problem}" for agent, error in sorted(errors.items()))
        raise AgentFailed(
            f"the rollouts are stored, but {len(errors)} of {len(errors) + len(entries)} agents returned no metrics "
            f"({reasons})",
            where=str(path),
            fix="start the agents and run `gym eval aggregate`",
        )
    return entries


async def metrics_entries(by_agent: RolloutsByAgent, fetch: FetchMetrics) -> tuple[list[Row], dict[str, GymError]]:
    """Return the entry of each agent, and the errors of agents whose server returned no metrics.

    `fetch` receives stripped records sorted by task, so that the same file always gives the same bytes.
    """
    answers: dict[str | None, Row | None] = {}
    errors: dict[str, GymError] = {}

    async def fetch_one(agent: str | None, rollouts: AgentRollouts) -> None:
        if agent is None or not rollouts.rows:
            answers[agent] = None
            return
        try:
            answers[agent] = await fetch(agent, sorted(rollouts.rows, key=row_indices))
        except GymError as error:
            errors[agent] = error

    async with asyncio.TaskGroup() as tasks:
        for agent, rollouts in by_agent.agents.items():
            tasks.create_task(fetch_one(agent, rollouts))
    items = by_agent.agents.items()
    return [metrics_entry(agent, rollouts, answers[agent]) for agent, rollouts in items if agent in answers], errors


async def fetch_metrics(client: ServerClient, server: str, records: list[Row]) -> Row:
    """Return the answer of a running server to `/aggregate_metrics`.

    Raises:
        AgentFailed: the server answered with an error or with something else than a JSON object.
    """
    try:
        response = await _post(client, server, records)
        await raise_for_status(response)
        metrics = await get_response_json(response)
    except ClientResponseError as error:
        body = innermost_cause(response_text(error))[:500]
        raise AgentFailed(f"{METRICS_PATH} answered {error.status}: {body}", where=server) from error
    except ValueError as error:
        raise AgentFailed(f"{METRICS_PATH} did not answer with JSON: {error}", where=server) from error
    if not isinstance(metrics, dict):
        raise AgentFailed(f"{METRICS_PATH} did not answer with an object", where=server)
    return metrics


async def _post(client: ServerClient, server: str, records: list[Row], retries: int = 2) -> ClientResponse:
    """Call `/aggregate_metrics`; if the server's process ends, retry, which is safe because the call has no effects."""
    try:
        return await client.post(server_name=server, url_path=METRICS_PATH, json={"verify_responses": records})
    except ServerUnreachable:
        if not retries:
            raise
    return await _post(client, server, records, retries - 1)


def write_metrics(path: Path, entries: Iterable[Row]) -> None:
    """Write the entries as an indented JSON array to a new file, which then replaces `path`.

    Raises:
        StoreError: the file cannot be written.
    """
    try:
        with whole_file(path) as file:
            file.write(b"[")
            for number, entry in enumerate(entries):
                file.write(b"," if number else b"")
                _write_entry(file, entry)
            file.write(b"\n]")
    except OSError as error:
        raise StoreError(f"cannot write: {error.strerror or error}", where=str(path)) from error


def _write_entry(file: BinaryIO, entry: Row) -> None:
    """Write one entry. Its group metrics may be an iterator: they are written one by one, never all in memory."""
    for number, (name, value) in enumerate(entry.items()):
        file.write((b",\n    " if number else b"\n  {\n    ") + orjson.dumps(name) + b": ")
        if name == GROUP_METRICS and isinstance(value, Iterator):
            file.write(b"[")
            file.writelines(
                (b",\n      " if count else b"\n      ") + _indented_json(group, b"\n      ")
                for count, group in enumerate(value)
            )
            file.write(b"\n    ]")
        else:
            file.write(_indented_json(value, b"\n    "))
    file.write(b"\n  }")


def _indented_json(value: Any, line_break: bytes) -> bytes:
    # JSON escapes line breaks inside texts, so every raw line break is indentation.
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).replace(b"\n", line_break)
