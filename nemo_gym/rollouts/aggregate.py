"""Scores per agent: what is sent to be aggregated, and how the answers are kept."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.errors import GymError
from nemo_gym.keys import (
    AGENT_REF_KEY_NAME,
    NG_AGENT_OBSERVATIONS_KEY,
    NG_MODEL_CALL_CAPTURE_KEY,
    NG_TRAJECTORY_KEY,
    RESPONSE_KEY_NAME,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
)
from nemo_gym.rollouts.job import Row
from nemo_gym.rollouts.jsonl import StoreError

_LEFT_OUT = frozenset(
    {
        RESPONSE_KEY_NAME,
        RESPONSES_CREATE_PARAMS_KEY_NAME,
        NG_AGENT_OBSERVATIONS_KEY,
        NG_MODEL_CALL_CAPTURE_KEY,
        NG_TRAJECTORY_KEY,
    }
)

Ask = Callable[[str, list[Row]], Awaitable[Row]]
"""Send an agent its records and return the metrics it made of them."""


def stripped(record: Row) -> Row:
    """A record without the conversation: what metrics are made of, at a fraction of the size. Usage is kept."""
    kept = {name: value for name, value in record.items() if name not in _LEFT_OUT}
    response = record.get(RESPONSE_KEY_NAME)
    if isinstance(response, dict) and response.get("usage"):
        kept[RESPONSE_KEY_NAME] = {"usage": response["usage"]}
    return kept


def by_agent(records: Iterable[Row]) -> dict[str, list[Row]]:
    """The stripped records of each agent, in the order given."""
    groups: dict[str, list[Row]] = {}
    for record in records:
        name = (record.get(AGENT_REF_KEY_NAME) or {}).get("name")
        if name:
            groups.setdefault(str(name), []).append(stripped(record))
    return groups


async def aggregate(records: Iterable[Row], ask: Ask) -> tuple[list[Row], dict[str, GymError]]:
    """One entry per agent in the order they answer, and the failure of each that did not."""
    entries: list[Row] = []
    failed: dict[str, GymError] = {}

    async def one(agent: str, group: list[Row]) -> None:
        try:
            metrics = await ask(agent, group)
        except GymError as error:
            failed[agent] = error
        else:
            entries.append(_entry(agent, metrics))

    async with asyncio.TaskGroup() as tasks:
        for agent, group in by_agent(records).items():
            tasks.create_task(one(agent, group))
    return entries, failed


def write_metrics(path: Path, entries: list[Row]) -> None:
    """Write the entries as one JSON array; the file appears whole."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(orjson.dumps(entries, option=orjson.OPT_INDENT_2))
        partial.replace(path)
    except OSError as error:
        raise StoreError(f"cannot write: {error.strerror or error}", where=str(path)) from error


def _entry(agent: str, metrics: Row) -> Row:
    entry: dict[str, Any] = {AGENT_REF_KEY_NAME: {"name": agent}}
    for name, empty in (("agent_metrics", {}), ("key_metrics", {}), ("group_level_metrics", [])):
        entry[name] = metrics.get(name, empty)
    return entry
