"""Prove the verifier of sales reports: the right figures, sent once to the right person."""

import math
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.authoring.verifier_proof import VerifierProof, offline_client, verify_reply
from resources_servers.sales_report import audit
from resources_servers.sales_report.app import SalesReportServer
from resources_servers.sales_report.desk import ToolError, parse_number
from resources_servers.sales_report.generate import rows
from resources_servers.sales_report.world import expected_figures, expected_recipient, world

ROWS = rows(15, seed=1)


class TestProof(VerifierProof):
    """Oracle, odd forms, wrong answers, cheats, broken rows, example data and fixture cases."""

    folder = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def http() -> TestClient:
    return offline_client(SalesReportServer)


def test_the_components_show_which_parts_are_missing(http: TestClient) -> None:
    """The reward is all or nothing; the components show how far a model came."""
    row = ROWS[0]
    nothing = verify_reply(http, row, "Done.")["reward_components"]
    draft = verify_reply(http, row, audit.finished_reply([audit.report_call(row, orders=0)]))["reward_components"]
    full = verify_reply(http, row, audit.oracle(row))["reward_components"]

    assert set(nothing.values()) == {0.0}
    assert [name for name, score in draft.items() if not score] == [
        "orders",
        "recipient",
        "sent_once",
    ]
    assert set(full.values()) == {1.0}


def test_the_tools_give_every_figure() -> None:
    """A task that the tools cannot solve teaches nothing."""
    http = offline_client(SalesReportServer)
    for row in ROWS[:10]:
        http.post("/seed_session", json=row)
        path = f"sales/{row['quarter']}/{row['region'].lower()}.csv"
        assert path in http.post("/list_files", json={"pattern": "sales/*"}).json()["output"]
        query = {"path": path, "operation": "sum", "status": "shipped"}
        revenue = http.post("/aggregate", json=query).json()["output"]
        orders = http.post("/aggregate", json={**query, "operation": "count"}).json()["output"]
        lines = http.post("/read_file", json={"path": path}).json()["output"].splitlines()[1:]

        expected = expected_figures(row["world_seed"], row["region"], row["quarter"])
        assert (revenue, orders) == (expected.revenue, expected.orders)
        assert sum(int(line.split(",")[3]) for line in lines if line.endswith("shipped")) == expected.revenue
        contacts = http.post("/find_contacts", json={"region": row["region"]}).json()["output"]
        assert expected_recipient(row["world_seed"], row["region"]) in {contact["email"] for contact in contacts}


def test_managers_are_sometimes_on_leave() -> None:
    """Otherwise a model need not read who gets a report."""
    tasks = rows(12, seed=3)
    roles = set()
    for row in tasks:
        recipient = expected_recipient(row["world_seed"], row["region"])
        roles.add(next(contact.role for contact in world(row["world_seed"]).contacts if contact.email == recipient))

    assert roles == {"regional manager", "deputy"}


@pytest.mark.parametrize(
    ("tool", "arguments", "problem"),
    [
        ("read_file", {"path": "/etc/passwd"}, "no file"),
        ("read_file", {"path": "../world.py"}, "no file"),
        ("read_file", {}, "path"),
        ("aggregate", {"path": "notes/policy.txt", "operation": "sum"}, "not a sales file"),
        ("aggregate", {"path": "x", "operation": "divide"}, "operation"),
        ("write_report", {"region": "North"}, "quarter"),
        ("send_report", {"region": "North", "quarter": "2026-Q1", "recipient": "x"}, "no draft"),
        ("list_files", {"folder": "x"}, "folder"),
    ],
)
def test_a_failed_call_gives_the_reason(tool: str, arguments: dict[str, Any], problem: str) -> None:
    """A model can correct its call only with the reason."""
    http = offline_client(SalesReportServer)
    http.post("/seed_session", json=ROWS[0])

    assert problem in http.post(f"/{tool}", json=arguments).json()["error"]


def test_a_session_without_a_seed_is_refused(http: TestClient) -> None:
    """An empty list of files would mislead the model."""
    assert TestClient(http.app).post("/list_files", json={}).status_code == 409


@pytest.mark.parametrize(
    ("written", "value"),
    [("1,234", 1234.0), ("$1,234.50", 1234.5), ("-3.5 %", -3.5), ("−3.5", -3.5), ("+7", 7.0), (12, 12.0)],
)
def test_numbers_are_read_as_people_write_them(written: float | str, value: float) -> None:
    """A thousands separator is not a mistake."""
    assert parse_number(written, "revenue") == value


@given(st.one_of(st.text(max_size=30), st.floats()))
@settings(max_examples=80, deadline=None)
def test_values_that_are_not_finite_numbers_are_refused(written: float | str) -> None:
    """A report with NaN could match anything or nothing."""
    try:
        assert math.isfinite(parse_number(written, "revenue"))
    except ToolError as problem:
        assert "must be a number" in str(problem)
