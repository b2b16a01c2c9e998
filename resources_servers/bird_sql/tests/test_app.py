"""The gold query scores in many forms; fillers, cheats and queries without end score nothing."""

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from fastapi import HTTPException
from fastapi.testclient import TestClient

from nemo_gym.environment.audit_cheats import generic_cheats
from nemo_gym.environment.audit_replies import Reply, response_of
from nemo_gym.environment.verifier_fixture import exercise_verifier_fixture, said
from nemo_gym.errors import EnvFailed
from resources_servers.bird_sql import audit
from resources_servers.bird_sql.app import VERIFIER_FIXTURE, BirdSQLServer, BirdSQLVerifyRequest
from resources_servers.bird_sql.databases import own_database
from resources_servers.bird_sql.generate import KINDS, rows
from resources_servers.code_gen.tests.boxes import needs_box, served

HERE = Path(__file__).parent
ROW = rows(5, seed=0)[0]
AT_ONCE = 4
LIMITS = {"sql_timeout_secs": 0.5, "memory_limit_mib": 256}

Verdict = dict[str, Any]
pytestmark = needs_box


async def verdicts(cases: list[tuple[dict[str, Any], Reply]], **settings: Any) -> list[Verdict]:
    """What the server says to each reply, a few at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(server: BirdSQLServer, given: dict[str, Any], reply: Reply) -> Verdict:
        async with gate:
            body = BirdSQLVerifyRequest.model_validate({**given, "response": response_of(reply, given)})
            return (await server.verify(body)).model_dump()

    async with served(BirdSQLServer, **{**LIMITS, **settings}) as server:
        return await asyncio.gather(*(one(server, given, reply) for given, reply in cases))


def block(query: str) -> str:
    return f"```sql\n{query}\n```"


def answered(given: dict[str, Any], sql: str) -> set[tuple[Any, ...]]:
    """What one of our own queries gives, without any box."""
    database = sqlite3.connect(":memory:")
    try:
        database.deserialize(own_database(given["db_id"]))
        return set(database.execute(sql))
    finally:
        database.close()


def test_every_generated_row_has_an_answer_and_its_near_miss_another() -> None:
    """A gold result that is empty, or that a wrong query gives as well, teaches nothing."""
    for given in rows(100, seed=1):
        values = {key: value for key, value in given["problem"].items() if key != "kind"}
        gold = answered(given, given["sql"])
        assert gold not in (set(), {(0,)}), given["question"]
        assert gold != answered(given, KINDS[given["problem"]["kind"]].wrong.format(**values)), given["question"]


async def test_every_kind_of_row_is_solved_by_its_oracle() -> None:
    """A row whose own answer scores less than full would teach the wrong thing."""
    made = rows(12, seed=1)

    found = await verdicts([(given, audit.oracle(given)) for given in made])

    assert [(one["reward"], one["failure_code"], one["isolated"]) for one in found] == [(1.0, None, True)] * 12
    assert {given["problem"]["kind"] for given in made} == set(KINDS)


async def test_the_right_query_scores_in_every_odd_form_and_what_comes_close_in_none() -> None:
    """A right answer judged wrong is a lesson lost, and the other way round."""
    forms, close = audit.odd_forms(ROW), audit.wrong(ROW)

    found = await verdicts([(ROW, reply) for reply in [*forms, *close]])

    assert len(forms) >= 20
    assert [one["extracted_sql"] for one in found[: len(forms)] if one["reward"] != 1.0] == []
    assert [one["extracted_sql"] for one in found[len(forms) :] if one["reward"] != 0.0] == []


async def test_a_cheat_earns_nothing() -> None:
    """Reward without a query is what a policy learns first."""
    cheats = [*generic_cheats(ROW), *audit.cheats(ROW)]

    found = await verdicts([(ROW, reply) for _, reply in cheats])

    assert [name for (name, _), one in zip(cheats, found, strict=True) if one["reward"] != 0.0] == []


async def test_the_verdict_says_what_was_wrong() -> None:
    """A missing block, a query that fails, one that takes too long and a wrong result are four different lessons."""
    table = {"library": "book", "orchard": "tree"}[ROW["db_id"]]
    replies = {
        "no_sql_block": "SELECT 1",
        "prediction_error": block("SELEC 1"),
        "prediction_timeout": block(f"SELECT COUNT(*) FROM {', '.join(f'{table} AS t{n}' for n in range(9))}"),
        "prediction_limit": block(f"{audit.ENDLESS} SELECT x FROM n LIMIT 200000"),
        "wrong_result": block("SELECT 1"),
    }

    found = await verdicts([(ROW, reply) for reply in replies.values()], sql_timeout_secs=1.0)

    assert [one["failure_code"] for one in found] == list(replies)
    assert all(one["failure_message"] for one in found)


async def test_the_database_cannot_be_changed_left_or_looked_behind() -> None:
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

    found = await verdicts([({**ROW, "db_id": "library", "sql": "SELECT id FROM book"}, block(one)) for one in queries])

    assert [(one["failure_code"], one["reward"]) for one in found] == [("prediction_error", 0.0)] * len(queries)


async def test_twenty_verdicts_at_once_are_the_same() -> None:
    """Grading has no memory."""
    found = await verdicts([(ROW, audit.oracle(ROW))] * 20 + [(ROW, audit.wrong(ROW)[0])] * 4)

    assert [one["reward"] for one in found[:20]] == [1.0] * 20
    assert [(one["reward"], one["failure_code"]) for one in found[20:]] == [(0.0, "wrong_result")] * 4


async def test_an_empty_gold_result_is_not_met_by_any_query_that_finds_nothing() -> None:
    """The filler of other graders would be right on every such row."""
    given = {**ROW, "db_id": "library", "sql": "SELECT title FROM book WHERE pages > 100000"}
    replies = [
        block("SELECT title FROM book WHERE pages >= 100001"),
        block("SELECT NULL WHERE 0"),
        block("SELECT name FROM author WHERE 0"),
        block("SELECT title, pages FROM book WHERE pages > 100000"),
    ]

    found = await verdicts([(given, reply) for reply in replies])

    assert [one["reward"] for one in found] == [1.0, 0.0, 0.0, 0.0]


async def test_sums_in_another_order_are_the_same() -> None:
    """The last digits of a float depend on the plan, not on the query."""
    given = {**ROW, "db_id": "orchard", "sql": "SELECT SUM(kilograms) FROM picking"}
    query = "SELECT SUM(kilograms) FROM (SELECT kilograms FROM picking ORDER BY kilograms DESC)"
    near = "SELECT SUM(kilograms) + 0.001 FROM picking"

    found = await verdicts([(given, block(query)), (given, block(near))])

    assert [one["reward"] for one in found] == [1.0, 0.0]


async def test_a_gold_query_that_hits_a_limit_is_a_failure_and_not_a_verdict() -> None:
    """The model had no part in it."""
    given = {**ROW, "sql": f"{audit.ENDLESS} SELECT COUNT(*) FROM n"}

    with pytest.raises(EnvFailed, match="gold_limit"):
        await verdicts([(given, audit.oracle(ROW))])


@pytest.mark.parametrize(("name", "breaking"), audit.MALFORMED)
async def test_a_row_at_fault_is_a_clear_422(name: str, breaking: Any) -> None:
    """The data is at fault, and must not look like a wrong answer."""
    with pytest.raises(HTTPException) as refused:
        await verdicts([(breaking(ROW), audit.oracle(ROW))])

    assert refused.value.status_code == 422
    assert any(word in refused.value.detail for word in ("db_id", "gold_error"))


def test_a_row_without_its_fields_is_a_422_over_http() -> None:
    """As every caller meets it, the fault of the gold query included."""
    with TestClient(VERIFIER_FIXTURE.server_factory().setup_webserver()) as http:
        missing = http.post("/verify", json={"responses_create_params": {"input": "?"}, "response": said("1")})
        wrong = http.post("/verify", json={**ROW, "sql": "SELECT x FROM y", "response": said("1")})

    assert (missing.status_code, wrong.status_code) == (422, 422)
    assert wrong.json()["detail"] == "gold_error: the gold query does not run: no such table: y"


async def test_databases_of_a_folder_are_found_by_their_name(tmp_path: Path) -> None:
    """BIRD's own layout."""
    (tmp_path / "shop").mkdir()
    database = sqlite3.connect(tmp_path / "shop" / "shop.sqlite")
    database.executescript("CREATE TABLE item (name TEXT, data BLOB); INSERT INTO item VALUES ('pen', x'00ff');")
    database.close()
    given = {"responses_create_params": {"input": "?"}, "db_id": "shop", "SQL": "SELECT name, data FROM item"}

    right, wrong = await verdicts(
        [(given, block("SELECT name, data FROM item")), (given, block("SELECT name, hex(data) FROM item"))],
        database_dir=str(tmp_path),
    )

    assert (right["reward"], wrong["reward"]) == (1.0, 0.0)
    assert (tmp_path / "shop").exists()


def test_the_example_data_is_what_the_generator_writes() -> None:
    """Committed data that drifts from its source is data nobody can explain."""
    path = HERE.parent / "data" / "example.jsonl"

    assert [json.loads(line) for line in path.read_text("utf-8").splitlines()] == rows(5, seed=0)


async def test_the_example_rollouts_get_the_same_verdict_today() -> None:
    """Committed rollouts that no longer hold mislead whoever looks at them."""
    lines = (HERE.parent / "data" / "example_rollouts.jsonl").read_text("utf-8").splitlines()
    rollouts = [json.loads(line) for line in lines]

    async with served(BirdSQLServer) as server:
        again = [await server.verify(BirdSQLVerifyRequest.model_validate(one)) for one in rollouts]

    assert [(one.reward, one.failure_code) for one in again] == [
        (one["reward"], one["failure_code"]) for one in rollouts
    ]


async def test_the_verifier_decides_every_case_as_written() -> None:
    """`gym env test bird_sql` tries the same cases."""
    results = await exercise_verifier_fixture(VERIFIER_FIXTURE, seeded=True, reward_range=(0, 1), best=1.0)

    assert [result for result in results if not result.is_good] == []
