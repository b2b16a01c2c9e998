"""The oracle scores full in many forms; null and cheats score nothing."""

import math
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.authoring.proof import VerifierProof, offline_client, verify_reply
from nemo_gym.authoring.verifier_fixture import offline_server
from resources_servers.sales_report import audit
from resources_servers.sales_report.app import SalesReportServer
from resources_servers.sales_report.desk import Refused, number
from resources_servers.sales_report.generate import rows
from resources_servers.sales_report.world import right_figures, right_recipient, world

ROWS = rows(15, seed=1)


class TestProof(VerifierProof):
    """The oracle, odd forms, close answers, cheats and broken rows."""

    folder = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def http() -> TestClient:
    return offline_client(SalesReportServer)


def test_the_parts_say_what_is_missing(http: TestClient) -> None:
    """The reward is all or nothing; the parts tell how far a model came."""
    row = ROWS[0]
    nothing = verify_reply(http, row, "Done.")["reward_components"]
    draft = verify_reply(http, row, audit.done([audit.report(row, orders=0)]))["reward_components"]
    full = verify_reply(http, row, audit.oracle(row))["reward_components"]

    assert set(nothing.values()) == {0.0}
    assert [name for name, done in draft.items() if not done] == ["orders", "recipient", "sent_once"]
    assert set(full.values()) == {1.0}


def test_every_figure_can_be_had_from_the_tools() -> None:
    """A task that the tools cannot solve tests patience."""
    http = TestClient(offline_server(SalesReportServer).setup_webserver())
    for row in ROWS[:10]:
        http.post("/seed_session", json=row)
        path = f"sales/{row['quarter']}/{row['region'].lower()}.csv"
        assert path in http.post("/list_files", json={"pattern": "sales/*"}).json()["output"]
        asked = {"path": path, "operation": "sum", "status": "shipped"}
        revenue = http.post("/aggregate", json=asked).json()["output"]
        orders = http.post("/aggregate", json={**asked, "operation": "count"}).json()["output"]
        lines = http.post("/read_file", json={"path": path}).json()["output"].splitlines()[1:]

        right = right_figures(row["world_seed"], row["region"], row["quarter"])
        assert (revenue, orders) == (right.revenue, right.orders)
        assert sum(int(line.split(",")[3]) for line in lines if line.endswith("shipped")) == right.revenue
        contacts = http.post("/find_contacts", json={"region": row["region"]}).json()["output"]
        assert right_recipient(row["world_seed"], row["region"]) in {contact["email"] for contact in contacts}


def test_managers_are_sometimes_on_leave() -> None:
    """Or nobody would have to read who gets a report."""
    made = rows(12, seed=3)
    roles = set()
    for row in made:
        to = right_recipient(row["world_seed"], row["region"])
        roles.add(next(contact.role for contact in world(row["world_seed"]).contacts if contact.email == to))

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
def test_a_call_that_cannot_be_done_says_why(tool: str, arguments: dict[str, Any], problem: str) -> None:
    """What a model reads is all it has to go by."""
    http = TestClient(offline_server(SalesReportServer).setup_webserver())
    http.post("/seed_session", json=ROWS[0])

    assert problem in http.post(f"/{tool}", json=arguments).json()["error"]


def test_a_session_that_was_not_seeded_is_told_so(http: TestClient) -> None:
    """An empty folder would be a lie."""
    assert TestClient(http.app).post("/list_files", json={}).status_code == 409


@pytest.mark.parametrize(
    ("written", "value"),
    [("1,234", 1234.0), ("$1,234.50", 1234.5), ("-3.5 %", -3.5), ("−3.5", -3.5), ("+7", 7.0), (12, 12.0)],
)
def test_numbers_are_read_as_people_write_them(written: float | str, value: float) -> None:
    """A thousands separator is no mistake."""
    assert number(written, "revenue") == value


@given(st.one_of(st.text(max_size=30), st.floats()))
@settings(max_examples=80, deadline=None)
def test_what_is_no_number_is_refused(written: float | str) -> None:
    """Nothing but finite numbers gets into a report."""
    try:
        assert math.isfinite(number(written, "revenue"))
    except Refused as problem:
        assert "must be a number" in str(problem)
