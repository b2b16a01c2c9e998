"""The work on one chunk of a dataset: check each row, measure it, and write it as trainers will read it."""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from nemo_gym.data.check import RowChecker, problems_of
from nemo_gym.data.chunks import Chunk
from nemo_gym.data.lines import Row, exact_row, read_line, row_line
from nemo_gym.data.measure import Meter, Metrics
from nemo_gym.data.problems import Problem, Problems
from nemo_gym.data.prompt import PromptConfig, load_prompt_config, prompted
from nemo_gym.keys import AGENT_REF_KEY_NAME
from nemo_gym.keys import RESPONSES_CREATE_PARAMS_KEY_NAME as PARAMS

AGENTS = "responses_api_agents"


@dataclass(frozen=True, slots=True)
class Task:
    """A chunk and what its rows become."""

    chunk: Chunk
    agent: str
    repeats: int = 1
    prompt: Path | None = None
    most_problems: int | None = None
    """Stop after this many rows that cannot be used."""


@dataclass(slots=True)
class Prepared:
    """What became of a chunk."""

    lines: int = 0
    written: bytes = b""
    """The rows as they go into the collated file; nothing when a row cannot be used."""
    metrics: Metrics = field(default_factory=Metrics)
    problems: Problems = field(default_factory=Problems)
    other_agents: Counter[str] = field(default_factory=Counter)
    """Agents that rows named and that are not the one the dataset belongs to."""


class Preparer:
    """Works on chunks one after the other; what it learns about repeated values serves the next one.

    Without `measure`, rows are only checked and written.
    """

    def __init__(self, *, measure: bool = True) -> None:
        self._checker = RowChecker()
        self._meter = Meter() if measure else None

    def prepare(self, task: Task) -> Prepared:
        found = Prepared()
        prompt = load_prompt_config(task.prompt) if task.prompt else None
        stamp = Stamp(task.agent)
        written = []
        for raw in task.chunk.lines():
            found.lines += 1
            line, problems = self._prepared(raw, prompt, stamp, task.repeats)
            if problems:
                found.problems.add(found.lines, problems)
                if task.most_problems is not None and found.problems.rows >= task.most_problems:
                    break
            written.append(line)
        if not found.problems:
            found.written = b"".join(written)
        if self._meter is not None:
            found.metrics = self._meter.take()
        found.other_agents = stamp.replaced
        return found

    def _prepared(
        self, raw: bytes, prompt: PromptConfig | None, stamp: "Stamp", repeats: int
    ) -> tuple[bytes, list[Problem]]:
        row, problems = read_line(raw)
        if row is None:
            return b"", problems
        filled: Row | None = None
        if prompt is not None:
            found = prompted(row if problems else exact_row(raw), prompt)
            if isinstance(found, Problem):
                return b"", [*problems, found]
            filled = found
            # Numbers beyond 64 bits are written as they are, and checked as what they are to everybody else.
            row = {**row, PARAMS: {**(row.get(PARAMS) or {}), "input": filled[PARAMS]["input"]}}
        request = self._checker.accepted(row)
        if request is None:
            problems += problems_of(row)
        if problems or request is None:
            return b"", problems
        if self._meter is not None:
            self._meter.add(row, request, repeats)
        line = stamp.on_line(raw, row) if filled is None else stamp.on_row(filled)
        return (line if repeats == 1 else line * repeats), []


class Stamp:
    """Writes the agent's name on rows, touching nothing else of what was written."""

    def __init__(self, agent: str) -> None:
        self.replaced: Counter[str] = Counter()
        self._ref = {"type": AGENTS, "name": agent}
        written = json.dumps({AGENT_REF_KEY_NAME: self._ref}, ensure_ascii=False)
        self._ending = f", {written[1:]}\n".encode()

    def on_line(self, raw: bytes, row: Row) -> bytes:
        """The line with the agent's name; everything else stays as it is written."""
        named = row.get(AGENT_REF_KEY_NAME)
        if AGENT_REF_KEY_NAME not in row:
            return raw.strip()[:-1] + self._ending
        if named == self._ref:
            return raw.strip() + b"\n"
        return self.on_row(exact_row(raw))

    def on_row(self, row: Row) -> bytes:
        named = row.get(AGENT_REF_KEY_NAME)
        if named is not None and named != self._ref:
            name = named.get("name") if isinstance(named, dict) else None
            self.replaced[str(name)] += 1
        return row_line({**row, AGENT_REF_KEY_NAME: self._ref})
