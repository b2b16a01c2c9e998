"""A query run in a box, and two results compared."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nemo_gym.errors import EnvFailed

INSIDE = (Path(__file__).parent / "inside.py").read_text("utf-8")
START_SECONDS = 5.0
"""For a box, beside its query."""
PATIENCE = 3.0
"""On the clock a query may take so many times its CPU time."""
DIGITS = 12
"""Significant digits of a float that count: sums depend on the order of the rows in the last ones."""
BOX_KINDS = {"timeout": "time", "cpu_time": "time"}


class Runner(Protocol):
    """What is needed of a `PythonRunner`."""

    async def run(
        self, code: str, *, stdin: str, timeout_s: float, memory_mib: int, files: dict[str, bytes]
    ) -> Any: ...


@dataclass(frozen=True)
class Limits:
    seconds: float
    memory_mib: int
    rows: int = 100_000
    characters: int = 16 << 20


@dataclass(frozen=True)
class Result:
    """What a query gave: its distinct rows, or why there are none."""

    rows: frozenset[tuple[Any, ...]] = frozenset()
    columns: int = 0
    tables: frozenset[str] = frozenset()
    """That were read."""
    kind: str | None = None
    """`sql` (it is wrong), `forbidden`, `time`, `memory`, `rows`, or what else ended the box."""
    error: str | None = None
    seconds: float = 0.0
    isolated: bool = True

    @property
    def failed(self) -> bool:
        return self.kind is not None


async def run_query(runner: Runner, database: bytes, sql: str, limits: Limits) -> Result:
    """Run one query against a copy of `database` that it cannot change.

    Raises:
        EnvFailed: the sandbox failed, which says nothing about the query.
    """
    job = {"sql": sql, "seconds": limits.seconds, "rows": limits.rows, "characters": limits.characters}
    ran = await runner.run(
        INSIDE,
        stdin=json.dumps(job),
        timeout_s=limits.seconds * PATIENCE + START_SECONDS,
        memory_mib=limits.memory_mib,
        files={"data.sqlite": database},
    )
    if ran.kind == "sandbox":
        raise EnvFailed(f"the sandbox failed: {ran.stderr[-500:]}", fix="gym doctor")
    if ran.kind is not None:
        kind = BOX_KINDS.get(ran.kind, ran.kind)
        return Result(kind=kind, error=f"ended by its limit: {kind}", seconds=ran.seconds, isolated=ran.isolated)
    return _read(ran)


def _read(ran: Any) -> Result:
    try:
        answer = json.loads(ran.stdout)
    except ValueError:
        raise EnvFailed(f"the box did not answer (status {ran.exit_code}): {ran.stderr[-500:]}") from None
    if "kind" in answer:
        return Result(kind=answer["kind"], error=answer["error"], seconds=ran.seconds, isolated=ran.isolated)
    return Result(
        rows=frozenset(tuple(map(_comparable, json.loads(line))) for line in answer["rows"]),
        columns=answer["columns"],
        tables=frozenset(answer["tables"]),
        seconds=ran.seconds,
        isolated=ran.isolated,
    )


def _comparable(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value


def same(predicted: Result, gold: Result) -> bool:
    """The same rows in any order, however often each of them occurs.

    Two results without rows are the same only when the prediction looked where the gold looked: a query that reads
    nothing and finds nothing has not answered anything.
    """
    if gold.rows or predicted.rows:
        return predicted.rows == gold.rows
    return predicted.columns == gold.columns and bool(gold.tables) and gold.tables <= predicted.tables
