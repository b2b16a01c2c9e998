"""Questions about a database: the query in the last sql block must give the rows that the gold query gives."""

import asyncio
from collections import OrderedDict
from pathlib import Path
from typing import Any, Literal

from fastapi import HTTPException
from pydantic import AliasChoices, ConfigDict, Field, PrivateAttr

from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyRequest, BaseVerifyResponse, ReverifyMode
from nemo_gym.environment.verifier_fixture import VerifierFixture, offline_server
from nemo_gym.errors import EnvFailed
from nemo_gym.grading.last_text import last_assistant_text
from nemo_gym.grading.verdict import Extraction, Unparsed
from nemo_gym.reward_profile import compute_pass_majority_metrics, compute_subset_metrics, highest_k_metrics
from nemo_gym.sandbox.server import BoxedConfig, BoxedServer
from resources_servers.bird_sql.databases import find_database
from resources_servers.bird_sql.run import Limits, Result, run_query, same
from resources_servers.bird_sql.sqltext import last_query, without_comments

REMEMBERED = 256
"""Results of gold queries that are kept: repeats of one task ask for the same."""
MOST_ROWS_REMEMBERED = 1000

FailureCode = Literal["no_sql_block", "prediction_error", "prediction_timeout", "prediction_limit", "wrong_result"]
PREDICTION_FAILED: dict[str, FailureCode] = {
    "sql": "prediction_error",
    "forbidden": "prediction_error",
    "time": "prediction_timeout",
}
"""By the kind of a result; every other kind is a limit."""
ROW_AT_FAULT = ("sql", "forbidden", "rows")
"""Kinds of a gold result that come out the same every time."""


def query_of(body: BaseVerifyRequest) -> Extraction[str]:
    """The query in the last sql block of the last message."""
    said = last_assistant_text(body.response)
    return said if isinstance(said, Unparsed) else last_query(said.value)


class BirdSQLConfig(BoxedConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS

    database_dir: str | None = None
    """Holds `<db_id>/<db_id>.sqlite`, as BIRD lays them out (default: the databases of this folder)."""
    sql_timeout_secs: float = Field(default=30.0, gt=0)
    """CPU time of one query; on the clock it may take three times as much."""
    memory_limit_mib: int = Field(default=512, ge=64)


class BirdSQLRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    db_id: str = Field(min_length=1)
    sql: str = Field(min_length=1, validation_alias=AliasChoices("sql", "SQL", "gold_sql"))
    """The gold query."""
    difficulty: str | None = None


class BirdSQLVerifyRequest(BirdSQLRunRequest, BaseVerifyRequest):
    pass


class BirdSQLVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    db_id: str
    sql: str
    difficulty: str | None
    extracted_sql: str | None
    """The query that was run; None when there is none."""
    failure_code: FailureCode | None
    """None when the rows are the same."""
    failure_message: str | None
    num_gold_rows: int
    num_predicted_rows: int | None
    """Different rows; None when the query did not give any result."""
    execution_seconds: float | None
    isolated: bool


class BirdSQLServer(BoxedServer):
    MAX_OUTPUT_BYTES = 64 << 20

    config: BirdSQLConfig
    _golds: "OrderedDict[tuple[str, str], Result]" = PrivateAttr(default_factory=OrderedDict)

    async def verify(self, body: BirdSQLVerifyRequest) -> BirdSQLVerifyResponse:
        """Run both queries and compare their rows.

        Raises:
            HTTPException: 422, the row is at fault: no such database, or a gold query that does not run.
            EnvFailed: the sandbox failed, or the gold query hit a limit.
        """
        database = await self.database(body.db_id)
        gold = await self.gold(body.db_id, database, body.sql)
        query = query_of(body)
        predicted = None if isinstance(query, Unparsed) else await self.result(database, query.value)
        code, message = _verdict(query, predicted, gold)
        graded = {
            "extracted_sql": None if isinstance(query, Unparsed) else query.value,
            "failure_code": code,
            "failure_message": message,
            "num_gold_rows": len(gold.rows),
            "num_predicted_rows": None if predicted is None or predicted.failed else len(predicted.rows),
            "execution_seconds": None if predicted is None else round(predicted.seconds, 6),
            "isolated": gold.isolated if predicted is None else gold.isolated and predicted.isolated,
            "reward": float(code is None),
        }
        return BirdSQLVerifyResponse(**(body.model_dump() | graded))

    async def database(self, db_id: str) -> bytes:
        folder = Path(self.config.database_dir) if self.config.database_dir is not None else None
        try:
            return await asyncio.to_thread(find_database, db_id, folder)
        except LookupError as problem:
            raise HTTPException(422, f"db_id: {problem}") from None

    async def gold(self, db_id: str, database: bytes, sql: str) -> Result:
        """The rows of the gold query, remembered when they are few."""
        found = self._golds.get((db_id, sql))
        if found is None:
            found = await self.result(database, without_comments(sql).strip().rstrip("; \t\r\n"))
            self._remember((db_id, sql), found)
        if found.kind in ROW_AT_FAULT:
            raise HTTPException(422, f"gold_error: the gold query does not run: {found.error}")
        if found.failed:
            raise EnvFailed(f"gold_limit: the gold query was ended by its limit: {found.kind}")
        return found

    def _remember(self, key: tuple[str, str], result: Result) -> None:
        if not result.failed and len(result.rows) <= MOST_ROWS_REMEMBERED:
            self._golds[key] = result
            while len(self._golds) > REMEMBERED:
                self._golds.popitem(last=False)

    async def result(self, database: bytes, sql: str) -> Result:
        limits = Limits(self.config.sql_timeout_secs, self.config.memory_limit_mib)
        return await run_query(self._runner, database, sql, limits)

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks)[0] | compute_subset_metrics(tasks, "difficulty")

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        means = {key: agent_metrics[key] for key in ("mean/reward",) if key in agent_metrics}
        return means | highest_k_metrics(agent_metrics, "pass@{k}")


def _verdict(query: Extraction[str], predicted: Result | None, gold: Result) -> tuple[FailureCode | None, str | None]:
    """Why there is no reward, or nothing."""
    if isinstance(query, Unparsed):
        return "no_sql_block", query.reason
    assert predicted is not None
    if predicted.kind is not None:
        return PREDICTION_FAILED.get(predicted.kind, "prediction_limit"), predicted.error
    if same(predicted, gold):
        return None, None
    return "wrong_result", f"{len(predicted.rows)} rows, {len(predicted.rows & gold.rows)} of {len(gold.rows)} right"


async def _verified_and_closed(server: BirdSQLServer, body: BirdSQLVerifyRequest) -> BirdSQLVerifyResponse:
    try:
        return await server.verify(body)
    finally:
        await server.aclose()


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(BirdSQLServer, sql_timeout_secs=1.0, sandbox={"local": {}}),
    request_model=BirdSQLVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
    invoke=_verified_and_closed,
)


if __name__ == "__main__":
    BirdSQLServer.run_webserver()
