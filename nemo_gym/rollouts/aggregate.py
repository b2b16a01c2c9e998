"""Scores per agent: gathered from records in one pass, with the figures of servers that have their own."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import orjson
from aiohttp import ClientResponseError

from nemo_gym.catalog.files import whole_file
from nemo_gym.errors import AgentFailed, GymError
from nemo_gym.keys import (
    AGENT_REF_KEY_NAME,
    NG_AGENT_OBSERVATIONS_KEY,
    NG_FAILURE_CLASS_KEY,
    NG_MODEL_CALL_CAPTURE_KEY,
    NG_NO_PERSIST_KEY,
    NG_TRAJECTORY_KEY,
    RESPONSE_KEY_NAME,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)
from nemo_gym.metrics.aggregate import RolloutRowsError, Tally, index_of, mean_metrics
from nemo_gym.metrics.scores import ATTRITION, SCORES, attrition_of, scores_of
from nemo_gym.rollouts.job import Row
from nemo_gym.rollouts.jsonl import StoreError
from nemo_gym.rollouts.key import RolloutKey
from nemo_gym.server_utils import ServerClient, get_response_json, raise_for_status

_LEFT_OUT = frozenset(
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

Ask = Callable[[str, list[Row]], Awaitable[Row]]
"""Send an agent its records and return the metrics it made of them."""


def stripped(record: Row) -> Row:
    """A record without the conversation: what metrics are made of, at a fraction of the size. Usage is kept."""
    kept = {name: value for name, value in record.items() if name not in _LEFT_OUT}
    response = record.get(RESPONSE_KEY_NAME)
    if isinstance(response, dict) and response.get("usage"):
        kept[RESPONSE_KEY_NAME] = {"usage": response["usage"]}
    return kept


def agent_of(record: Mapping[str, Any]) -> str | None:
    """The name of the agent that made a record, if it says so."""
    reference = record.get(AGENT_REF_KEY_NAME)
    name = reference.get("name") if isinstance(reference, dict) else None
    return str(name) if name else None


class AgentRollouts:
    """What is kept of one agent's rollouts: their numbers and, if it is to be asked, the stripped records."""

    def __init__(self, *, asked: bool) -> None:
        self.tally = Tally()
        self.subsets: dict[str, Tally] = {}
        self.rows: list[Row] | None = [] if asked else None

    def add(self, record: Row, subset: str | None) -> None:
        kept = self.tally.add(record)
        if subset is not None and kept is not None:
            part = self.subsets.get(subset)
            if part is None:
                part = self.subsets[subset] = Tally(shapes=self.tally.shapes)
            part.records[self.tally.latest] = kept
        if self.rows is not None:
            self.rows.append(stripped(record))


class Gathered:
    """Takes in records one at a time. Memory is their numbers, not the records.

    Of agents for which `asked` is true the stripped records are kept, to be sent. `subset_of` tells the part of the
    data a record belongs to, if parts are wanted.
    """

    def __init__(
        self,
        *,
        asked: Callable[[str], bool] = lambda _: False,
        subset_of: Callable[[Row], str | None] = lambda _: None,
    ) -> None:
        self.agents: dict[str | None, AgentRollouts] = {}
        self._asked = asked
        self._subset_of = subset_of

    def add(self, record: Row) -> None:
        """Take in a scored record."""
        self._agent(agent_of(record)).add(record, self._subset_of(record))

    def fail(self, record: Row) -> None:
        """Take in a record of a failures file; it counts unless its rollout was scored in the end.

        Raises:
            RolloutRowsError: it does not say which rollout it is.
        """
        if record.get(NG_FAILURE_CLASS_KEY) is None or record.get(NG_NO_PERSIST_KEY):
            return
        try:
            place = RolloutKey.of(record).place
        except ValueError as error:
            raise RolloutRowsError(f"a failure does not say which rollout it is: {error}") from error
        self._agent(agent_of(record)).tally.fail(*place, str(record[NG_FAILURE_CLASS_KEY]))

    def _agent(self, name: str | None) -> AgentRollouts:
        found = self.agents.get(name)
        if found is None:
            found = self.agents[name] = AgentRollouts(asked=name is not None and self._asked(name))
        return found


def entry_of(name: str | None, rollouts: AgentRollouts, answer: Row | None = None) -> Row:
    """What is reported of an agent; `answer` is its server's, where that was asked.

    `group_level_metrics` is an iterator if nobody was asked: there may be many tasks, and they are only written.
    """
    entry: Row = {AGENT_REF_KEY_NAME: {"name": name or UNNAMED_AGENT}}
    if answer is None:
        figures = rollouts.tally.figures()
        entry |= {AGENT_METRICS: figures, KEY_METRICS: mean_metrics(figures), GROUP_METRICS: rollouts.tally.groups()}
    else:
        for key, empty in ((AGENT_METRICS, {}), (KEY_METRICS, {}), (GROUP_METRICS, [])):
            entry[key] = answer.get(key, empty)
    # A server that makes no metrics of its rollouts (they were not verified, say) has no scores either.
    scored = answer is None or bool(entry[AGENT_METRICS])
    entry |= {SCORES: scores_of(rollouts.tally) if scored else {}, ATTRITION: attrition_of(rollouts.tally)}
    if rollouts.subsets and scored:
        entry[SUBSETS] = {subset: scores_of(part) for subset, part in sorted(rollouts.subsets.items())}
    return entry


async def aggregate(
    records: Iterable[Row],
    ask: Ask,
    *,
    failures: Iterable[Row] = (),
    asked: Callable[[str], bool] = lambda _: True,
) -> tuple[list[Row], dict[str, GymError]]:
    """One entry per agent in the order of the records, and the failure of each that did not answer.

    Each gets its records in the order of their tasks, so that computing again from the same file gives the same bytes.
    Agents for which `asked` is false are not bothered: their figures are computed here.
    """
    gathered = Gathered(asked=asked)
    for record in records:
        gathered.add(record)
    for record in failures:
        gathered.fail(record)
    return await entries_of(gathered, ask)


async def entries_of(gathered: Gathered, ask: Ask) -> tuple[list[Row], dict[str, GymError]]:
    """The same from what has been gathered."""
    answers: dict[str | None, Row | None] = {}
    failed: dict[str, GymError] = {}

    async def one(name: str | None, rollouts: AgentRollouts) -> None:
        if name is None or not rollouts.rows:
            answers[name] = None
            return
        try:
            answers[name] = await ask(name, sorted(rollouts.rows, key=_place))
        except GymError as error:
            failed[name] = error

    async with asyncio.TaskGroup() as tasks:
        for name, rollouts in gathered.agents.items():
            tasks.create_task(one(name, rollouts))
    found = [(name, rollouts) for name, rollouts in gathered.agents.items() if name in answers]
    return [entry_of(name, rollouts, answers[name]) for name, rollouts in found], failed


def _place(record: Row) -> tuple[int, int]:
    return index_of(record, TASK_INDEX_KEY_NAME) or 0, index_of(record, ROLLOUT_INDEX_KEY_NAME) or 0


async def ask_server(client: ServerClient, server: str, records: list[Row]) -> Row:
    """What a running server answers to `/aggregate_metrics`.

    Raises:
        AgentFailed: it does not answer, or not with metrics.
    """
    try:
        response = await client.post(server_name=server, url_path=METRICS_PATH, json={"verify_responses": records})
        await raise_for_status(response)
        metrics = await get_response_json(response)
    except ClientResponseError as error:
        said = getattr(error, "response_content", b"")[:500].decode("utf-8", errors="replace")
        raise AgentFailed(f"{METRICS_PATH} answered {error.status}: {said}", where=server) from error
    except ValueError as error:
        raise AgentFailed(f"{METRICS_PATH} did not answer with JSON: {error}", where=server) from error
    if not isinstance(metrics, dict):
        raise AgentFailed(f"{METRICS_PATH} did not answer with an object", where=server)
    return metrics


def write_metrics(path: Path, entries: Iterable[Row]) -> None:
    """Write the entries as one JSON array, indented; the file appears whole. Tasks are written one at a time."""
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
    for number, (name, value) in enumerate(entry.items()):
        file.write((b",\n    " if number else b"\n  {\n    ") + orjson.dumps(name) + b": ")
        if name == GROUP_METRICS and isinstance(value, Iterator):
            file.write(b"[")
            file.writelines(
                (b",\n      " if count else b"\n      ") + _indented(group, b"\n      ")
                for count, group in enumerate(value)
            )
            file.write(b"\n    ]")
        else:
            file.write(_indented(value, b"\n    "))
    file.write(b"\n  }")


def _indented(value: Any, line_break: bytes) -> bytes:
    # A line break inside a text is written as \\n, so every one that is found is ours.
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).replace(b"\n", line_break)
