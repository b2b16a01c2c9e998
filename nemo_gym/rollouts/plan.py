"""From the lines of a dataset to the jobs of a run."""

import hashlib
import json
import logging
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.keys import (
    AGENT_REF_KEY_NAME,
    ATTEMPT_INDEX_KEY_NAME,
    NG_PHASES_KEY,
    NG_SECONDS_KEY,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    SKILLS_REF_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)
from nemo_gym.rollouts.index import HIGHEST_TASK
from nemo_gym.rollouts.job import Job, Row
from nemo_gym.rollouts.key import RolloutKey
from nemo_gym.rollouts.problems import Agents, InputRowsError, Problems

logger = logging.getLogger("nemo_gym.rollouts")

DEFAULT_REPEATS_KEY = "_default"

_OF_ANOTHER_RUN = (ATTEMPT_INDEX_KEY_NAME, NG_SECONDS_KEY, NG_PHASES_KEY)
"""What a row that was taken from an output still says about that run."""

Line = tuple[int, bytes]
"""A line's number, counted from 1, and its bytes."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What a run makes of its rows."""

    agent_name: str | None = None
    """The agent of rows that name none; rows that name one keep it."""
    repeats: int | Mapping[str, int] = 1
    """Rollouts per row, or per agent with `_default` for the others."""
    add_seed: bool = False
    """Ask the model for seed n in rollout number n."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Laid over each row's `responses_create_params`, top-level keys only."""
    skills_ref: Mapping[str, Any] | None = None
    fill_prompt: Callable[[Row, str], Row] | None = None
    """Builds `responses_create_params.input` of a row; told where the row is."""
    agents: Agents | None = None
    """The agents that rows may name; any, where nobody knows them."""


def read_lines(path: Path, limit: int | None = None) -> Iterator[Line]:
    """The first `limit` lines that are not blank (all for None or 0), one at a time.

    Raises:
        ConfigPathNotFoundError: there is no such file.
    """
    if not path.is_file():
        raise ConfigPathNotFoundError(f"there is no input file {str(path)!r}", fix="check input_jsonl_fpath")
    with path.open("rb") as file:
        filled = ((number, line) for number, line in enumerate(file, start=1) if not line.isspace())
        yield from islice(filled, limit or None)


def plan(lines: Iterable[Line], options: PlanOptions, *, source: str, tasks: "Tasks | None" = None) -> Iterator[Job]:
    """Turn lines into jobs, all repeats of a line together, in the order they will be stored.

    Identical lines share a task, so their repeats form one group. Memory is a few dozen bytes per line, whatever
    the lines hold. Every line is looked at before a problem is reported, so take no job as final before the end.

    Raises:
        ConfigError: a line is not a JSON object.
        InputRowsError: (a ValueError) rows lack an agent, parameters or a repeat count, or bring an input although
            a prompt shall build it.
    """
    tasks = tasks if tasks is not None else Tasks()
    problems = Problems(source)
    used: set[str] = set()
    for number, line in lines:
        where = f"{source}:{number}"
        row = _parsed(line, where)
        task = tasks.of(line, row, where)
        prepared = _prepared(row, options, problems, number, where)
        if prepared is None:
            continue
        agent = prepared[AGENT_REF_KEY_NAME]["name"]
        used.add(agent)
        repeats = _repeats(agent, options, problems, number)
        if problems:
            continue  # nothing more is sent, but the other problems are still worth knowing
        for rollout in tasks.next_rollouts(task, repeats):
            yield _job(prepared, task, rollout, options, where)
    problems.raise_if_any()
    if isinstance(options.repeats, Mapping):
        unused = sorted(set(options.repeats) - used - {DEFAULT_REPEATS_KEY})
        if unused:
            logger.warning("num_repeats names agents that no row uses: %s", ", ".join(unused))


def check(lines: Iterable[Line], options: PlanOptions, *, source: str) -> None:
    """Raise what `plan` would raise for these lines; nothing is numbered or made ready to be sent."""
    problems = Problems(source)
    for number, line in lines:
        where = f"{source}:{number}"
        row = _parsed(line, where)
        _given_task(row, where)
        prepared = _prepared(row, options, problems, number, where)
        if prepared is not None:
            _repeats(prepared[AGENT_REF_KEY_NAME]["name"], options, problems, number)
            if options.add_seed:
                _seeded(prepared[RESPONSES_CREATE_PARAMS_KEY_NAME], 0, where)
    problems.raise_if_any()


def plan_more(
    lines: Callable[[], Iterable[Line]], options: PlanOptions, *, before: int | Mapping[str, int], source: str
) -> Iterator[Job]:
    """The jobs that `options.repeats` asks for beyond `before`, numbered after those of `before`."""
    tasks = Tasks()
    for _ in plan(lines(), replace(options, repeats=before), source=source, tasks=tasks):
        pass  # only to know how many rollouts each task has
    more = added_repeats(before, options.repeats)
    return plan(lines(), replace(options, repeats=more), source=source, tasks=tasks.from_the_start())


def added_repeats(before: int | Mapping[str, int], now: int | Mapping[str, int]) -> dict[str, int]:
    """How many rollouts per row `now` asks for beyond `before`, by agent; below zero where it asks for fewer."""
    old, new = (
        dict(repeats) if isinstance(repeats, Mapping) else {DEFAULT_REPEATS_KEY: repeats} for repeats in (before, now)
    )
    more: dict[str, int] = {}
    for agent in {*old, *new}:
        wanted = new.get(agent, new.get(DEFAULT_REPEATS_KEY))
        if wanted is not None:
            more[agent] = wanted - old.get(agent, old.get(DEFAULT_REPEATS_KEY, 0))
    return more


def _parsed(line: bytes, where: str) -> Row:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"this line is not JSON: {error}", where=where) from None
    if not isinstance(row, dict):
        raise ConfigError(f"this line is not a JSON object but {type(row).__name__}", where=where)
    return row


def _prepared(row: Row, options: PlanOptions, problems: Problems, number: int, where: str) -> Row | None:
    """The row as it will be sent, but for its key; None when that cannot be."""
    given = row.get(RESPONSES_CREATE_PARAMS_KEY_NAME)
    if given is None and options.fill_prompt is not None:
        given = {}
    if not isinstance(given, dict):
        problems.note(f"no object '{RESPONSES_CREATE_PARAMS_KEY_NAME}' and no prompt config", number)
        return None
    if options.fill_prompt is not None and given.get("input"):
        problems.note(
            f"'{RESPONSES_CREATE_PARAMS_KEY_NAME}.input' is there already, but a prompt config is set", number
        )
        return None
    reference = _agent_reference(row, options.agent_name)
    if reference is None:
        problems.note(f"no '{AGENT_REF_KEY_NAME}' with a name and no agent_name", number)
        return None
    unknown = options.agents.problem(reference["name"]) if options.agents is not None else None
    if unknown is not None:
        problems.note(unknown, number)
        return None
    if options.fill_prompt is not None:
        row = options.fill_prompt(row, where)
        given = row[RESPONSES_CREATE_PARAMS_KEY_NAME]
    for name in _OF_ANOTHER_RUN:
        row.pop(name, None)
    prepared = {**row, RESPONSES_CREATE_PARAMS_KEY_NAME: {**given, **options.overrides}, AGENT_REF_KEY_NAME: reference}
    if options.skills_ref is not None:
        prepared[SKILLS_REF_KEY_NAME] = dict(options.skills_ref)
    return prepared


def _agent_reference(row: Row, default: str | None) -> Row | None:
    reference = row.get(AGENT_REF_KEY_NAME)
    if isinstance(reference, dict) and isinstance(reference.get("name"), str) and reference["name"]:
        return reference
    if reference or not default:
        return None
    return {"type": "responses_api_agents", "name": default}


def _repeats(agent: str, options: PlanOptions, problems: Problems, number: int) -> int:
    if not isinstance(options.repeats, Mapping):
        return options.repeats
    repeats = options.repeats.get(agent, options.repeats.get(DEFAULT_REPEATS_KEY))
    if repeats is None:
        problems.note(f"num_repeats has neither agent {agent!r} nor '{DEFAULT_REPEATS_KEY}'", number)
        return 0
    return repeats


def _given_task(row: Row, where: str) -> int | None:
    """The task number that a row brings, if it does."""
    given = row.get(TASK_INDEX_KEY_NAME)
    if given is None:
        return None
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= HIGHEST_TASK:
        raise InputRowsError(f"{TASK_INDEX_KEY_NAME} must be a whole number from 0, not {given!r}", where=where)
    return given


def _job(prepared: Row, task: int, rollout: int, options: PlanOptions, where: str) -> Job:
    row = {**prepared, TASK_INDEX_KEY_NAME: task, ROLLOUT_INDEX_KEY_NAME: rollout}
    if options.add_seed:
        row[RESPONSES_CREATE_PARAMS_KEY_NAME] = _seeded(row[RESPONSES_CREATE_PARAMS_KEY_NAME], rollout, where)
    return Job(RolloutKey(task, rollout), row)


def _seeded(parameters: Row, seed: int, where: str) -> Row:
    """The parameters with the seed in `metadata.extra_body`, the JSON text that models merge into their request."""
    metadata = parameters.get("metadata") or {}
    try:
        extra = json.loads(metadata.get("extra_body") or "{}")
        seeded = json.dumps({**extra, "seed": seed})
    except (TypeError, ValueError, AttributeError) as error:
        raise InputRowsError(f"metadata.extra_body is not a JSON object as text: {error}", where=where) from error
    return {**parameters, "metadata": {**metadata, "extra_body": seeded}}


class Tasks:
    """Task numbers of lines, and how many rollouts each task already has."""

    def __init__(self) -> None:
        self._first_line = FirstLines()
        self._lines = 0
        self._rollouts = array("L")  # by task, for tasks numbered by us
        self._further: dict[int, int] = {}  # by task, for numbers the rows brought that are higher

    def from_the_start(self) -> "Tasks":
        """The same, for a second time through the same lines: counting goes on, numbering begins again."""
        self._lines = 0
        return self

    def of(self, line: bytes, row: Row, where: str) -> int:
        """The number the row brings, else the index of the first identical line."""
        index = self._lines
        self._lines += 1
        if index == len(self._rollouts):
            self._rollouts.append(self._further.pop(index, 0))
        first = self._first_line.of(line.strip(), index)
        given = _given_task(row, where)
        return first if given is None else given

    def next_rollouts(self, task: int, repeats: int) -> range:
        """The rollout numbers of `repeats` more rollouts of a task."""
        if task < len(self._rollouts):
            begin = self._rollouts[task]
            self._rollouts[task] += repeats
        else:
            begin = self._further.get(task, 0)
            self._further[task] = begin + repeats
        return range(begin, begin + repeats)


class FirstLines:
    """Which line was the first with this content: a table of hashes, 24 bytes per place, at most two thirds full.

    A dictionary would take six times as much, which is what a million rows cannot afford.
    """

    def __init__(self) -> None:
        self._size = 1 << 10
        self._used = 0
        self._low = array("Q", bytes(8 * self._size))
        self._high = array("Q", bytes(8 * self._size))
        self._index = array("Q", bytes(8 * self._size))

    def of(self, content: bytes, index: int) -> int:
        """The index given with the first content like this one, which may be this."""
        low, high = _two_numbers(content)
        place = self._place(low, high)
        if self._low[place] == low and self._high[place] == high:
            return self._index[place]
        self._low[place], self._high[place], self._index[place] = low, high, index
        self._used += 1
        if self._used * 3 > self._size * 2:
            self._grow()
        return index

    def _place(self, low: int, high: int) -> int:
        """Where these numbers are, or the free place where they belong."""
        mask = self._size - 1
        place = low & mask
        while (known := self._low[place]) and (known != low or self._high[place] != high):
            place = (place + 1) & mask
        return place

    def _grow(self) -> None:
        old = self._low, self._high, self._index
        self._size *= 2
        self._low = array("Q", bytes(8 * self._size))
        self._high = array("Q", bytes(8 * self._size))
        self._index = array("Q", bytes(8 * self._size))
        for low, high, index in zip(*old, strict=True):
            if low:
                place = self._place(low, high)
                self._low[place], self._high[place], self._index[place] = low, high, index


def _two_numbers(content: bytes) -> tuple[int, int]:
    digest = hashlib.blake2b(content, digest_size=16).digest()
    low = int.from_bytes(digest[:8], "little")
    return low or 1, int.from_bytes(digest[8:], "little")  # 0 marks a free place
