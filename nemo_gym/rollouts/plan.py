"""Plan a run: from the lines of a dataset to jobs, with all problems of the rows in one message."""

import hashlib
import json
import logging
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

from nemo_gym.catalog.row_problems import RowProblem, RowProblems
from nemo_gym.catalog.rows import parse_object
from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.journal import HIGHEST_TASK
from nemo_gym.keys import (
    AGENT_REF_KEY_NAME,
    AGENTS,
    ATTEMPT_INDEX_KEY_NAME,
    NG_PHASES_KEY,
    NG_SECONDS_KEY,
    NG_TURN_SECONDS_KEY,
    NG_TURNS_KEY,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    ROLLOUT_ID_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    SKILLS_REF_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)
from nemo_gym.rollouts.outcome import Job
from nemo_gym.rollouts.routing import AgentRoutes, NoAgentNamed
from nemo_gym.wire.stored_rollout import RolloutKey, Row

logger = logging.getLogger("nemo_gym.rollouts")

DEFAULT_REPEATS_KEY = "_default"
LISTED_AGENTS = 10

_FIELDS_OF_EARLIER_RUN = (
    ATTEMPT_INDEX_KEY_NAME,
    NG_SECONDS_KEY,
    NG_PHASES_KEY,
    NG_TURNS_KEY,
    NG_TURN_SECONDS_KEY,
)
"""Fields to remove from a row that is a record of an earlier output."""

Line = tuple[int, bytes] | tuple[int, bytes, int]
"""A line's number, counted from 1, its bytes, and its index among the rows if lines before it are left out."""
Repeats = int | dict[str, int]
"""Rollouts per row: one number, or a number by agent, with `_default` for agents that are not listed."""


class InputRowsError(ConfigError, ValueError):
    """Rows of a dataset cannot be sent. The message lists every kind of problem with its lines."""


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """The size of a run, reported before the first rollout is sent."""

    total: int
    """Rollouts of the whole run."""
    finished: int = 0
    """Rollouts that were scored in an earlier run; they are not run again."""
    given_up: int = 0
    """Rollouts that failed too often or with a terminal failure; they are not run again."""
    final: int = 0
    """Those of them that further attempts cannot change."""
    to_run: int = 0
    resumed: bool = False
    kept: Path | None = None
    """Folder of an earlier run's files, if they were moved aside."""
    notes: list[str] = field(default_factory=list)
    """Messages for the user, for example accepted changes or a missing identity file."""


class AgentNames:
    """The configured agents, for checking the agent names in rows."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(names)
        self._problems: dict[str, str | None] = dict.fromkeys(self._names)  # None for a configured agent

    @property
    def only_name(self) -> str | None:
        """The agent, if one is configured: rows that name none can mean no other."""
        return self._names[0] if len(self._names) == 1 else None

    @property
    def choice(self) -> str:
        """The advice for rows without an agent: the option that names one."""
        return (
            f"use --agent NAME: one of {', '.join(self._names[:LISTED_AGENTS])}" if self._names else "use --agent NAME"
        )

    def problem(self, name: str) -> str | None:
        """Return the error message for an unknown agent; None if the agent is configured."""
        if name not in self._problems:
            if len(self._problems) >= len(self._names) + LISTED_AGENTS:
                return "more unknown agents"  # one text for all further names keeps the message short
            close = get_close_matches(name, self._names, n=1)
            listed = ", ".join(self._names[:LISTED_AGENTS]) + (", …" if len(self._names) > LISTED_AGENTS else "")
            configured = f"; configured: {listed}" if self._names else "; no agents are configured"
            advice = f" — did you mean {close[0]!r}?" if close else configured
            self._problems[name] = f"unknown agent {name!r}{advice}"
        return self._problems[name]


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options by which rows become jobs."""

    agent_name: str | None = None
    """The agent of rows without an agent; other rows keep theirs."""
    routes: AgentRoutes | None = None
    """Rules for the agents of rows, which include `agent_name`; None: only `agent_ref` and `agent_name`."""
    repeats: Repeats = 1
    add_seed: bool = False
    """Request seed n from the model in rollout number n."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Merged over each row's `responses_create_params`, top-level keys only."""
    skills_ref: Mapping[str, Any] | None = None
    fill_prompt: Callable[[Row, str], Row] | None = None
    """Builds `responses_create_params.input` of a row; the second argument is the row's location."""
    agents: AgentNames | None = None
    """The agents that rows may name; None allows any."""


def read_lines(path: Path, limit: int | None = None) -> Iterator[Line]:
    """Yield the first `limit` non-blank lines with their numbers; all of them if `limit` is None or 0.

    Raises:
        ConfigPathNotFoundError: the file does not exist.
    """
    if not path.is_file():
        problem = f"the input is a folder, not a file: {path}" if path.is_dir() else f"input file not found: {path}"
        raise ConfigPathNotFoundError(problem, fix="check input_jsonl_fpath")
    with path.open("rb") as file:
        filled = ((number, line) for number, line in enumerate(file, start=1) if not line.isspace())
        yield from islice(filled, limit or None)


def line_digest(line: bytes) -> bytes:
    """Return the digest of a line: lines with the same digest are rows of one task."""
    return hashlib.blake2b(line.strip(), digest_size=16).digest()


class TaskNumbers:
    """Assign a task number to each line (identical lines share a task) and count the rollouts of each task.

    Memory is about a hundred bytes per line: a hash of the line and its index.
    """

    def __init__(self) -> None:
        self._first_lines: dict[bytes, int] = {}  # hash of a line -> index of the first line with this hash
        self._line_count = 0
        self._rollouts = array("L")  # by task, for tasks numbered here
        self._high_rollouts: dict[int, int] = {}  # by task, for higher task numbers that rows contain

    def restart(self) -> "TaskNumbers":
        """Start at the first line again, but continue counting rollouts; returns self."""
        self._line_count = 0
        return self

    def next_task(self, line: bytes, own_number: int | None, index: int | None = None) -> int:
        """Return the task of the next line: `own_number` if the row has one, else the index of the first equal line.

        `index` is the index of the line; by default lines are counted.
        """
        index = self._line_count if index is None else index
        self._line_count = index + 1
        while index >= len(self._rollouts):
            self._rollouts.append(self._high_rollouts.pop(len(self._rollouts), 0))
        first = self._first_lines.setdefault(line_digest(line), index)
        return first if own_number is None else own_number

    def next_rollouts(self, task: int, repeats: int) -> range:
        """Add `repeats` rollouts to a task and return their numbers."""
        if task < len(self._rollouts):
            begin = self._rollouts[task]
            self._rollouts[task] += repeats
        else:
            begin = self._high_rollouts.get(task, 0)
            self._high_rollouts[task] = begin + repeats
        return range(begin, begin + repeats)


def plan_jobs(
    lines: Iterable[Line], options: PlanOptions, *, source: str, tasks: TaskNumbers | None = None
) -> Iterator[Job]:
    """Yield the jobs of the lines, in the order of the lines, all repeats of a line together.

    Identical lines share a task, so their repeats form one group. Problems are raised after the last line, so jobs must
    not be sent before the iterator is exhausted.

    Raises:
        InputRowsError: rows are no JSON objects, lack an agent, parameters or a repeat count, or have an input although
            a prompt builds it.
    """
    tasks = tasks if tasks is not None else TaskNumbers()
    problems = RowProblems()
    used_agents: set[str] = set()
    for number, line, *index in lines:
        where = f"{source}:{number}"
        row = parse_object(line)
        if isinstance(row, RowProblem):
            problems.add(number, [row])
            continue
        task = tasks.next_task(line, _own_task_number(row, where), *index)
        for prepared, repeats in _prepare_row(row, options, problems, number, where):
            used_agents.add(prepared[AGENT_REF_KEY_NAME]["name"])
            if problems:
                continue  # the plan has failed; continue only to report further problems
            for rollout in tasks.next_rollouts(task, repeats):
                yield _make_job(prepared, task, rollout, options, where)
    _raise_if_any(problems, source)
    if isinstance(options.repeats, dict):
        unused = sorted(set(options.repeats) - used_agents - {DEFAULT_REPEATS_KEY})
        if unused:
            logger.warning("num_repeats names agents that no row uses: %s", ", ".join(unused))


def check_rows(lines: Iterable[Line], options: PlanOptions, *, source: str) -> None:
    """Raise the errors that `plan_jobs` would raise for these lines, without numbering tasks."""
    problems = RowProblems()
    for number, line, *_ in lines:
        where = f"{source}:{number}"
        row = parse_object(line)
        if isinstance(row, RowProblem):
            problems.add(number, [row])
            continue
        _own_task_number(row, where)  # only for its errors, like `_add_seed` below
        for prepared, _ in _prepare_row(row, options, problems, number, where):
            if options.add_seed:
                _add_seed(prepared[RESPONSES_CREATE_PARAMS_KEY_NAME], 0, where)
    _raise_if_any(problems, source)


def _raise_if_any(problems: RowProblems, source: str) -> None:
    if problems:
        raise InputRowsError("; ".join(problems.texts()), where=source)


def plan_more(
    lines: Callable[[], Iterable[Line]], options: PlanOptions, *, earlier_repeats: Repeats, source: str
) -> Iterator[Job]:
    """Plan the jobs that `options.repeats` adds to `earlier_repeats`, numbered after the earlier jobs."""
    tasks = TaskNumbers()
    for _ in plan_jobs(lines(), replace(options, repeats=earlier_repeats), source=source, tasks=tasks):
        pass  # `tasks` counts the earlier rollouts of each task
    added = added_repeats(earlier_repeats, options.repeats)
    return plan_jobs(lines(), replace(options, repeats=added), source=source, tasks=tasks.restart())


def added_repeats(earlier: Repeats, current: Repeats) -> dict[str, int]:
    """Return the rollouts per row that `current` adds to `earlier`, by agent; negative where `current` has fewer."""
    old, new = (
        repeats if isinstance(repeats, dict) else {DEFAULT_REPEATS_KEY: repeats} for repeats in (earlier, current)
    )
    added: dict[str, int] = {}
    for agent in {*old, *new}:
        count = new.get(agent, new.get(DEFAULT_REPEATS_KEY))
        if count is not None:
            added[agent] = count - old.get(agent, old.get(DEFAULT_REPEATS_KEY, 0))
    return added


def _prepare_row(
    row: Row, options: PlanOptions, problems: RowProblems, number: int, location: str
) -> list[tuple[Row, int]]:
    """Return the row to send to each of its agents, without its key, and its repeats.

    A problem is added to `problems`; then the list is empty, or without a repeat count the repeats are 0.
    """
    try:
        row = (options.routes or AgentRoutes()).flat_row(row)
    except ValueError as error:
        problems.add(number, [RowProblem("", str(error))])
        return []
    parameters = row.get(RESPONSES_CREATE_PARAMS_KEY_NAME)
    if parameters is None and options.fill_prompt is not None:
        parameters = {}
    references, problem = _agent_references(row, options)
    if not isinstance(parameters, dict):
        problem = f"no object '{RESPONSES_CREATE_PARAMS_KEY_NAME}' and no prompt config"
    elif options.fill_prompt is not None and parameters.get("input"):
        problem = f"'{RESPONSES_CREATE_PARAMS_KEY_NAME}.input' exists, but a prompt config is set"
    if problem is not None:
        problems.add(number, [RowProblem("", problem)])
        return []
    if options.fill_prompt is not None:
        row = options.fill_prompt(row, location)
        parameters = row[RESPONSES_CREATE_PARAMS_KEY_NAME]
    for name in _FIELDS_OF_EARLIER_RUN:
        row.pop(name, None)
    row = {**row, RESPONSES_CREATE_PARAMS_KEY_NAME: {**(parameters or {}), **options.overrides}}
    if options.skills_ref is not None:
        row[SKILLS_REF_KEY_NAME] = dict(options.skills_ref)
    return [
        ({**row, AGENT_REF_KEY_NAME: reference}, _repeats_of(reference["name"], options, problems, number))
        for reference in references
    ]


def _agent_references(row: Row, options: PlanOptions) -> tuple[list[Row], str | None]:
    """Return references to the agents of a row, and a problem if it has none or one that is not configured."""
    routes = options.routes or AgentRoutes(default_agent=options.agent_name)
    only_name = options.agents.only_name if options.agents is not None else None
    try:
        references = routes.references(row)
    except NoAgentNamed:
        if row.get(AGENT_REF_KEY_NAME) or not only_name:
            choice = options.agents.choice if options.agents is not None else "use --agent NAME"
            advice = routes.advice(row) or choice
            return [], f"no '{AGENT_REF_KEY_NAME}' with a name; {advice}"
        references = [{"type": AGENTS, "name": only_name}]
    except ConfigError as error:
        return [], error.problem
    unknown_agents = (options.agents.problem(one["name"]) for one in references) if options.agents is not None else ()
    return references, next((problem for problem in unknown_agents if problem is not None), None)


def _repeats_of(agent: str, options: PlanOptions, problems: RowProblems, number: int) -> int:
    """Return the repeats of an agent's rows; if they are not configured, add a problem and return 0."""
    if not isinstance(options.repeats, dict):
        return options.repeats
    repeats = options.repeats.get(agent, options.repeats.get(DEFAULT_REPEATS_KEY))
    if repeats is None:
        problem = f"num_repeats has neither agent {agent!r} nor '{DEFAULT_REPEATS_KEY}'"
        problems.add(number, [RowProblem("", problem)])
        return 0
    return repeats


def _own_task_number(row: Row, location: str) -> int | None:
    """Return the task index that the row contains, checked; None if it contains none."""
    number = row.get(TASK_INDEX_KEY_NAME)
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= HIGHEST_TASK:
        raise InputRowsError(f"{TASK_INDEX_KEY_NAME} must be a whole number from 0, not {number!r}", where=location)
    return number


def _make_job(prepared: Row, task: int, rollout: int, options: PlanOptions, location: str) -> Job:
    row = {**prepared, TASK_INDEX_KEY_NAME: task, ROLLOUT_INDEX_KEY_NAME: rollout}
    if rollout and isinstance(own_id := row.get(ROLLOUT_ID_KEY_NAME), str):
        row[ROLLOUT_ID_KEY_NAME] = f"{own_id}-{rollout}"  # what is captured under one id belongs to one rollout
    if options.add_seed:
        row[RESPONSES_CREATE_PARAMS_KEY_NAME] = _add_seed(row[RESPONSES_CREATE_PARAMS_KEY_NAME], rollout, location)
    return Job(RolloutKey(task, rollout), row)


def _add_seed(parameters: Row, seed: int, location: str) -> Row:
    """Add the seed to `metadata.extra_body`, the JSON text that models merge into their request."""
    metadata = parameters.get("metadata") or {}
    try:
        extra = json.loads(metadata.get("extra_body") or "{}")
        extra_body = json.dumps({**extra, "seed": seed})
    except (TypeError, ValueError, AttributeError) as error:
        raise InputRowsError(f"metadata.extra_body is not a JSON object as text: {error}", where=location) from error
    return {**parameters, "metadata": {**metadata, "extra_body": extra_body}}
