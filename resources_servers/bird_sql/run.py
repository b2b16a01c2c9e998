"""Run a query in a sandbox, and compare two results."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nemo_gym.errors import EnvFailed

BOX_PROGRAM = (Path(__file__).parent / "inside.py").read_text("utf-8")
START_SECONDS = 5.0
"""Time to start a box, in addition to its query."""
WALL_TIME_FACTOR = 3.0
"""Wall time of a query as a multiple of its CPU time."""
DIGITS = 12
"""Significant digits of a float: the last ones of a sum depend on the order of the rows."""
BOX_KINDS = {"timeout": "time", "cpu_time": "time"}


class QueryRunner(Protocol):
    """The part of `PythonRunner` that this module uses."""

    async def run(
        self, code: str, *, stdin: str, timeout_s: float, memory_mib: int, files: dict[str, bytes]
    ) -> Any: ...


@dataclass(frozen=True)
class QueryLimits:
    seconds: float
    memory_mib: int
    rows: int = 100_000
    characters: int = 16 << 20


@dataclass(frozen=True)
class QueryResult:
    """The distinct rows of a query, or the kind of its failure."""

    rows: frozenset[tuple[Any, ...]] = frozenset()
    columns: int = 0
    tables: frozenset[str] = frozenset()
    """The tables that were read."""
    kind: str | None = None
    """`sql` (invalid), `forbidden`, `time`, `memory`, `rows`, or another limit of the box; None for a result."""
    error: str | None = None
    seconds: float = 0.0
    isolated: bool = True

    @property
    def is_failure(self) -> bool:
        return self.kind is not None


async def run_query(runner: QueryRunner, database: bytes, sql: str, limits: QueryLimits) -> QueryResult:
    """Run one query against a copy of `database` that it cannot change.

    Raises:
        EnvFailed: the sandbox failed, which says nothing about the query.
    """
    job = {"sql": sql, "seconds": limits.seconds, "rows": limits.rows, "characters": limits.characters}
    run = await runner.run(
        BOX_PROGRAM,
        stdin=json.dumps(job),
        timeout_s=limits.seconds * WALL_TIME_FACTOR + START_SECONDS,
        memory_mib=limits.memory_mib,
        files={"data.sqlite": database},
    )
    if run.kind == "sandbox":
        raise EnvFailed(f"the sandbox failed: {run.stderr[-500:]}", fix="gym doctor")
    if run.kind is not None:
        kind = BOX_KINDS.get(run.kind, run.kind)
        return QueryResult(kind=kind, error=f"ended by its limit: {kind}", seconds=run.seconds, isolated=run.isolated)
    return _read_result(run)


def _read_result(run: Any) -> QueryResult:
    try:
        answer = json.loads(run.stdout)
    except ValueError:
        raise EnvFailed(f"the box did not answer (status {run.exit_code}): {run.stderr[-500:]}") from None
    if "kind" in answer:
        return QueryResult(kind=answer["kind"], error=answer["error"], seconds=run.seconds, isolated=run.isolated)
    return QueryResult(
        rows=frozenset(tuple(map(_comparable, json.loads(line))) for line in answer["rows"]),
        columns=answer["columns"],
        tables=frozenset(answer["tables"]),
        seconds=run.seconds,
        isolated=run.isolated,
    )


def _comparable(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value


def has_same_rows(predicted: QueryResult, gold: QueryResult) -> bool:
    """Return whether two results have the same rows; order and repetition do not matter.

    Two results without rows are the same only if the prediction reads the tables that the gold query reads: a query
    that reads nothing has not answered anything.
    """
    if gold.rows or predicted.rows:
        return predicted.rows == gold.rows
    return predicted.columns == gold.columns and bool(gold.tables) and gold.tables <= predicted.tables
