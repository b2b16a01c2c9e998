"""Questions about a database: the query in the last sql block must give the rows that the gold query gives."""

import asyncio
from collections import OrderedDict
from pathlib import Path
from typing import Any, Literal

from fastapi import HTTPException
from pydantic import AliasChoices, ConfigDict, Field, PrivateAttr

from nemo_gym.authoring.verifier_cases import VerifierFixture, offline_server
from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyRequest, BaseVerifyResponse, ReverifyMode
from nemo_gym.errors import EnvFailed
from nemo_gym.grading.extraction import last_assistant_text
from nemo_gym.grading.result_types import Extraction, NoAnswer
from nemo_gym.reward_profile import compute_pass_majority_metrics, compute_subset_metrics, headline_metrics
from nemo_gym.sandbox.base_server import SandboxServer, SandboxServerConfig
from resources_servers.bird_sql.databases import find_database
from resources_servers.bird_sql.run import QueryLimits, QueryResult, has_same_rows, run_query
from resources_servers.bird_sql.sqltext import last_query, without_comments

CACHED_GOLD_RESULTS = 256
"""Gold results kept in memory: repeats of a task use the same gold query."""
MOST_CACHED_ROWS = 1000

FailureCode = Literal["no_sql_block", "prediction_error", "prediction_timeout", "prediction_limit", "wrong_result"]
PREDICTION_FAILURES: dict[str, FailureCode] = {
    "sql": "prediction_error",
    "forbidden": "prediction_error",
    "time": "prediction_timeout",
}
"""Failure code by kind of result; every other kind is `prediction_limit`."""
ROW_AT_FAULT = ("sql", "forbidden", "rows")
"""Kinds of gold results that do not depend on the load of the machine."""


def extract_query(body: BaseVerifyRequest) -> Extraction[str]:
    """Extract the query from the last sql block of the last message."""
    text = last_assistant_text(body.response)
    return text if isinstance(text, NoAnswer) else last_query(text.value)


class BirdSQLConfig(SandboxServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS

    database_dir: str | None = Field(default=None, validation_alias=AliasChoices("database_dir", "bird_sql_dir"))
    """Folder with `<db_id>/<db_id>.sqlite`, the layout of BIRD (default: the databases of this server folder)."""
    sql_timeout_secs: float = Field(
        default=30.0, gt=0, validation_alias=AliasChoices("sql_timeout_secs", "sql_execution_timeout_s")
    )
    """CPU time of one query; its wall time may be three times as long."""
    memory_limit_mib: int = Field(default=512, ge=64)


class BirdSQLRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    db_id: str = Field(min_length=1)
    sql: str = Field(min_length=1, validation_alias=AliasChoices("sql", "SQL", "gold_sql", "gt_sql"))
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
    """The predicted query; None if the reply has no query."""
    failure_code: FailureCode | None
    """None if the rows are the same."""
    failure_message: str | None
    num_gold_rows: int
    num_predicted_rows: int | None
    """Number of distinct rows; None if the query failed."""
    execution_seconds: float | None
    isolated: bool


class BirdSQLServer(SandboxServer):
    MAX_OUTPUT_BYTES = 64 << 20

    config: BirdSQLConfig
    _golds: "OrderedDict[tuple[str, str], QueryResult]" = PrivateAttr(default_factory=OrderedDict)

    async def verify(self, body: BirdSQLVerifyRequest) -> BirdSQLVerifyResponse:
        """Run both queries and compare their rows.

        Raises:
            HTTPException: 422, the row is at fault: unknown database, or a gold query that does not run.
            EnvFailed: the sandbox failed, or the gold query hit a limit.
        """
        database = await self.load_database(body.db_id)
        gold = await self.gold_result(body.db_id, database, body.sql)
        query = extract_query(body)
        predicted = None if isinstance(query, NoAnswer) else await self.run_query(database, query.value)
        code, message = _compare(query, predicted, gold)
        graded = {
            "extracted_sql": None if isinstance(query, NoAnswer) else query.value,
            "failure_code": code,
            "failure_message": message,
            "num_gold_rows": len(gold.rows),
            "num_predicted_rows": None if predicted is None or predicted.is_failure else len(predicted.rows),
            "execution_seconds": None if predicted is None else round(predicted.seconds, 6),
            "isolated": gold.isolated if predicted is None else gold.isolated and predicted.isolated,
            "reward": float(code is None),
        }
        return BirdSQLVerifyResponse(**(body.model_dump() | graded))

    async def load_database(self, db_id: str) -> bytes:
        folder = Path(self.config.database_dir) if self.config.database_dir is not None else None
        try:
            return await asyncio.to_thread(find_database, db_id, folder)
        except LookupError as problem:
            raise HTTPException(422, f"db_id: {problem}") from None

    async def gold_result(self, db_id: str, database: bytes, sql: str) -> QueryResult:
        """Run the gold query, or return its cached result."""
        result = self._golds.get((db_id, sql))
        if result is None:
            result = await self.run_query(database, without_comments(sql).strip().rstrip("; \t\r\n"))
            self._cache((db_id, sql), result)
        if result.kind in ROW_AT_FAULT:
            raise HTTPException(422, f"gold_error: the gold query does not run: {result.error}")
        if result.is_failure:
            raise EnvFailed(f"gold_limit: the gold query was ended by its limit: {result.kind}")
        return result

    def _cache(self, key: tuple[str, str], result: QueryResult) -> None:
        if not result.is_failure and len(result.rows) <= MOST_CACHED_ROWS:
            self._golds[key] = result
            while len(self._golds) > CACHED_GOLD_RESULTS:
                self._golds.popitem(last=False)

    async def run_query(self, database: bytes, sql: str) -> QueryResult:
        limits = QueryLimits(self.config.sql_timeout_secs, self.config.memory_limit_mib)
        return await run_query(self._runner, database, sql, limits)

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks)[0] | compute_subset_metrics(tasks, "difficulty")

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        return headline_metrics(agent_metrics)


def _compare(
    query: Extraction[str], predicted: QueryResult | None, gold: QueryResult
) -> tuple[FailureCode | None, str | None]:
    """Return the failure code and message of a prediction, or None twice."""
    if isinstance(query, NoAnswer):
        return "no_sql_block", query.reason
    assert predicted is not None
    if predicted.kind is not None:
        return PREDICTION_FAILURES.get(predicted.kind, "prediction_limit"), predicted.error
    if has_same_rows(predicted, gold):
        return None, None
    return "wrong_result", f"{len(predicted.rows)} rows, {len(predicted.rows & gold.rows)} of {len(gold.rows)} right"


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(BirdSQLServer, sql_timeout_secs=1.0, sandbox={"local": {}}),
    request_model=BirdSQLVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


# The names of these classes in NeMo Gym, for folders that import or subclass them.
BirdSQLResourcesServer = BirdSQLServer
BirdSQLResourcesServerConfig = BirdSQLConfig


if __name__ == "__main__":
    BirdSQLServer.run_webserver()
