"""Prove the verifier of queries: the right rows score in many forms; fillers and endless queries earn nothing."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.authoring.model_replies import Reply, text_response
from nemo_gym.authoring.verifier_proof import VerifierProof, offline_client, verify_replies
from nemo_gym.sandbox.providers.local import probe
from resources_servers.bird_sql import audit
from resources_servers.bird_sql.app import BirdSQLServer
from resources_servers.bird_sql.databases import own_database
from resources_servers.bird_sql.generate import KINDS, rows

ROW = rows(5, seed=0)[0]
LIMITS = {"sql_timeout_secs": 0.5, "memory_limit_mib": 256}
pytestmark = pytest.mark.skipif(not probe().available, reason=f"no isolation here: {probe().problem}")


class TestProof(VerifierProof):
    """Oracle, odd forms, wrong answers, cheats, broken rows, example data and fixture cases."""

    folder = Path(__file__).parents[1]
    oracle_rows = 12
    checked_rows = 1


def verdicts(cases: list[tuple[dict[str, Any], Reply]], **settings: Any) -> list[dict[str, Any]]:
    return verify_replies(BirdSQLServer, cases, **{**LIMITS, **settings})


def block(query: str) -> str:
    return f"```sql\n{query}\n```"


def query_result(row: dict[str, Any], sql: str) -> set[tuple[Any, ...]]:
    """Run a query of this folder's generator without a sandbox."""
    database = sqlite3.connect(":memory:")
    try:
        database.deserialize(own_database(row["db_id"]))
        return set(database.execute(sql))
    finally:
        database.close()


def test_every_generated_row_has_an_answer_and_its_wrong_query_another() -> None:
    """A gold result that is empty, or that a wrong query gives as well, teaches nothing."""
    generated = rows(100, seed=1)

    assert {row["problem"]["kind"] for row in generated[:12]} == set(KINDS)
    for row in generated:
        values = {key: value for key, value in row["problem"].items() if key != "kind"}
        gold = query_result(row, row["sql"])
        assert gold not in (set(), {(0,)}), row["question"]
        assert gold != query_result(row, KINDS[row["problem"]["kind"]].wrong.format(**values)), row["question"]


def test_the_verdict_names_the_failure() -> None:
    """A missing block, a query that fails, one that takes too long and a wrong result are four different lessons."""
    table = {"library": "book", "orchard": "tree"}[ROW["db_id"]]
    replies = {
        "no_sql_block": "SELECT 1",
        "prediction_error": block("SELEC 1"),
        "prediction_timeout": block(f"SELECT COUNT(*) FROM {', '.join(f'{table} AS t{n}' for n in range(9))}"),
        "prediction_limit": block(f"{audit.ENDLESS} SELECT x FROM n LIMIT 200000"),
        "wrong_result": block("SELECT 1"),
    }

    results = verdicts([(ROW, reply) for reply in replies.values()], sql_timeout_secs=1.0)

    assert [one["failure_code"] for one in results] == list(replies)
    assert all(one["failure_message"] and one["isolated"] for one in results)


def test_a_query_may_only_read() -> None:
    """Every one of these is refused by name, not by luck."""
    queries = [
        "ATTACH DATABASE 'x.sqlite' AS x",
        "DETACH DATABASE main",
        "PRAGMA writable_schema = 1",
        "PRAGMA table_info(book)",
        "SELECT load_extension('x')",
        "CREATE TABLE x (y)",
        "CREATE TEMP TABLE x AS SELECT 1",
        "UPDATE book SET title = ''",
        "DELETE FROM loan",
        "INSERT INTO loan VALUES (1000, 1, 1, '', '')",
        "VACUUM INTO 'x.sqlite'",
        "REINDEX",
        "ANALYZE",
        "BEGIN",
        "EXPLAIN DELETE FROM loan",
    ]
    row = {**ROW, "db_id": "library", "sql": "SELECT id FROM book"}

    results = verdicts([(row, block(query)) for query in queries])

    assert [(one["failure_code"], one["reward"]) for one in results] == [("prediction_error", 0.0)] * len(queries)


def test_an_empty_gold_result_is_not_met_by_any_query_without_rows() -> None:
    """A filler query would be right on every such row."""
    row = {**ROW, "db_id": "library", "sql": "SELECT title FROM book WHERE pages > 100000"}
    replies = [
        block("SELECT title FROM book WHERE pages >= 100001"),
        block("SELECT NULL WHERE 0"),
        block("SELECT name FROM author WHERE 0"),
        block("SELECT title, pages FROM book WHERE pages > 100000"),
    ]

    assert [one["reward"] for one in verdicts([(row, reply) for reply in replies])] == [1.0, 0.0, 0.0, 0.0]


def test_sums_in_another_order_are_equal() -> None:
    """The last digits of a float depend on the plan, not on the query."""
    row = {**ROW, "db_id": "orchard", "sql": "SELECT SUM(kilograms) FROM picking"}
    query = "SELECT SUM(kilograms) FROM (SELECT kilograms FROM picking ORDER BY kilograms DESC)"
    near = "SELECT SUM(kilograms) + 0.001 FROM picking"

    assert [one["reward"] for one in verdicts([(row, block(query)), (row, block(near))])] == [1.0, 0.0]


def test_a_gold_query_that_hits_a_limit_is_a_failure_and_not_a_verdict() -> None:
    """The model had no part in it."""
    row = {**ROW, "sql": f"{audit.ENDLESS} SELECT COUNT(*) FROM n"}

    with pytest.raises(AssertionError, match=r"status 500.*gold_limit"):
        verdicts([(row, audit.oracle(ROW))])


def test_a_row_at_fault_is_a_422_that_names_the_fault() -> None:
    """The data is at fault, and must not look like a wrong answer."""
    with offline_client(BirdSQLServer, **LIMITS) as http:
        for name, break_row in audit.MALFORMED:
            answer = http.post("/verify", json={**break_row(ROW), "response": text_response("?")})
            assert answer.status_code == 422, name
            assert any(word in answer.json()["detail"] for word in ("db_id", "gold_error")), name
        wrong = http.post("/verify", json={**ROW, "sql": "SELECT x FROM y", "response": text_response("1")})
        assert wrong.json()["detail"] == "gold_error: the gold query does not run: no such table: y"


def test_databases_of_a_folder_are_found_by_name(tmp_path: Path) -> None:
    """BIRD's layout of databases, and its name for the gold query, must work."""
    (tmp_path / "shop").mkdir()
    database = sqlite3.connect(tmp_path / "shop" / "shop.sqlite")
    database.executescript("CREATE TABLE item (name TEXT, data BLOB); INSERT INTO item VALUES ('pen', x'00ff');")
    database.close()
    row = {"responses_create_params": {"input": "?"}, "db_id": "shop", "SQL": "SELECT name, data FROM item"}
    queries = ["SELECT name, data FROM item", "SELECT name, hex(data) FROM item"]

    results = verdicts([(row, block(query)) for query in queries], database_dir=str(tmp_path))

    assert [one["reward"] for one in results] == [1.0, 0.0]
