"""The oracle scores full in many forms; null and cheats score nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.authoring.proof import VerifierProof, offline_client, verify_reply
from nemo_gym.authoring.verifier_fixture import offline_server
from resources_servers.workplace_assistant import audit
from resources_servers.workplace_assistant.app import WorkplaceServer, after
from resources_servers.workplace_assistant.generate import rows
from resources_servers.workplace_assistant.office import Office, differing_tables

ROWS = rows(30, seed=1)


class TestProof(VerifierProof):
    """The oracle, odd forms, close answers, cheats and broken rows."""

    folder = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def http() -> TestClient:
    return offline_client(WorkplaceServer)


OMAR = "omar.okafor@northwind.example"
EVENT = {"event_name": "Demo", "participant_email": OMAR, "event_start": "2026-04-30 10:00:00", "duration": "30"}
MAIL = {"recipient": OMAR, "subject": "Hello", "body": "See you."}


def same(one: audit.Calls, other: audit.Calls) -> bool:
    """Whether two lists of calls leave the same office behind."""
    ends = [after((name, json.dumps(arguments)) for name, arguments in calls)[0] for calls in (one, other)]
    return differing_tables(*ends) == []


def test_there_are_27_tools_and_each_has_a_schema() -> None:
    """The model can only call what it is told about."""
    tools = ROWS[0]["responses_create_params"]["tools"]

    assert len(tools) == 27
    assert len({tool["name"] for tool in tools}) == 27
    assert all(tool["description"] and tool["parameters"]["type"] == "object" for tool in tools)


def test_forty_rows_are_forty_different_tasks_of_every_category() -> None:
    """Variety is what the seed is for."""
    made = rows(120, seed=7)

    assert len({row["responses_create_params"]["input"][1]["content"] for row in made}) == 120
    assert len({row["category"] for row in made}) == 6
    assert rows(40, seed=1) != rows(40, seed=2)


def test_order_does_not_matter_unless_it_changes_what_is_left() -> None:
    """Two ways to the same office are both right."""
    event, mail = ("calendar_create_event", EVENT), ("email_send_email", MAIL)
    later = ("calendar_create_event", {**EVENT, "event_start": "2026-05-01 10:00:00"})
    due = [("project_management_update_task", {"task_id": "00000500", "field": "due_date", "new_value": day})
           for day in ("2026-05-01", "2026-05-02")]  # fmt: skip

    assert same([event, later, mail], [mail, later, event])
    assert not same(due, due[::-1])
    assert same([due[0], due[1]], [due[1]])


def test_case_matters_only_in_status_list_and_board() -> None:
    """Names are typed in many ways; states are not."""
    mail, event = ("email_send_email", MAIL), ("calendar_create_event", EVENT)
    loud = ("email_send_email", {key: value.upper() for key, value in MAIL.items()})

    assert same([mail], [loud])
    assert same([event], [("calendar_create_event", {**EVENT, "event_name": "DEMO"})])
    task = {"task_id": "00000500", "field": "list_name", "new_value": "in progress"}
    assert after([("project_management_update_task", json.dumps(task))])[1]


def test_what_is_done_and_undone_leaves_nothing() -> None:
    """Only the end is compared."""
    new = "00000380"
    name = Office.fresh().tables["calendar"]["00000300"]["event_name"]
    renamed = [("calendar_update_event", {"event_id": "00000300", "field": "event_name", "new_value": text})
               for text in ("Other", name.upper())]  # fmt: skip

    assert same([("calendar_create_event", EVENT), ("calendar_delete_event", {"event_id": new})], [])
    assert same(renamed, [])
    assert not same(renamed[:1], [])


def test_a_session_has_an_office_of_its_own() -> None:
    """Thousands of rollouts use one server at once."""
    app = offline_server(WorkplaceServer).setup_webserver()
    ada, bob = TestClient(app), TestClient(app)
    for http in (ada, bob):
        http.post("/seed_session", json={})
    found = {"email_id": "00002000", "field": "subject"}

    assert ada.post("/email_delete_email", json={"email_id": "00002000"}).json() == {"output": "The email was deleted."}
    assert "Error" in ada.post("/email_get_email_information_by_id", json=found).json()["output"]
    assert "subject" in bob.post("/email_get_email_information_by_id", json=found).json()["output"]


def test_a_session_that_was_not_seeded_is_told_so(http: TestClient) -> None:
    """An empty answer would look like an empty mailbox."""
    answer = TestClient(http.app).post("/email_search_emails", json={})

    assert answer.status_code == 409
    assert "not seeded" in answer.text


@pytest.mark.parametrize(
    ("tool", "arguments", "said_back"),
    [
        ("company_directory_find_email_address", {"name": "okafor"}, OMAR),
        ("company_directory_find_email_address", {"name": "zzz"}, "No colleague"),
        ("email_search_emails", {"query": "zzz"}, "No emails found"),
        ("email_search_emails", {"date_min": "yesterday"}, "must be like"),
        ("email_send_email", {"recipient": "Omar", "subject": "a", "body": "b"}, "email address"),
        ("email_send_email", {"recipient": OMAR}, "needs subject, body"),
        ("email_send_email", {**MAIL, "cc": "x"}, "no argument 'cc'"),
        ("email_send_email", {**MAIL, "body": ["x"]}, "must be a text"),
        ("email_send_email", {**MAIL, "body": "x" * 20_000}, "longer than"),
        ("calendar_create_event", {**EVENT, "duration": "soon"}, "whole number"),
        ("calendar_update_event", {"event_id": "00000300", "field": "colour", "new_value": "x"}, "no field"),
        ("analytics_total_visits_count", {"time_min": "2026-03-01", "time_max": "2026-03-02"}, "2026-03-01"),
        ("analytics_get_average_session_duration", {}, "2026-03-01"),
        ("analytics_engaged_users_count", {"time_min": "2026-03-10"}, "2026-03-11"),
        ("analytics_traffic_source_count", {"traffic_source": "pigeon"}, "must be one of"),
        ("analytics_get_visitor_information_by_id", {"visitor_id": "00070000"}, "page_views"),
        ("project_management_search_tasks", {"board": "design", "list_name": "backlog"}, "task_id"),
        ("project_management_get_task_information_by_id", {"task_id": "x", "field": "board"}, "no task"),
        ("customer_relationship_manager_search_customers", {"status": "Won"}, "customer_id"),
        ("customer_relationship_manager_search_customers", {"follow_up_by_min": "2030-01-01"}, "No customers"),
    ],
)
def test_tools_answer_or_say_what_is_wrong(tool: str, arguments: dict[str, Any], said_back: str) -> None:
    """What a model reads is all it has to go by."""
    http = TestClient(offline_server(WorkplaceServer).setup_webserver())
    http.post("/seed_session", json={})

    assert said_back in http.post(f"/{tool}", json=arguments).json()["output"]


def test_the_verdict_says_where_the_office_differs(http: TestClient) -> None:
    """People look at wrong answers first."""
    row = next(row for row in ROWS if row["category"] == "project_management")
    result = verify_reply(http, row, audit.done([("email_send_email", MAIL), ("email_delete_email", {})]))

    assert result["differing_tables"] == ["emails", "tasks"]
    assert result["refused_calls"] == ["email_delete_email: email_delete_email needs email_id"]


def test_names_with_the_prefix_of_mcp_clients_are_known(http: TestClient) -> None:
    """The same tools can be offered over MCP."""
    calls = [(f"mcp__offline__{name}", arguments) for name, arguments in audit.reference(ROWS[0])]

    assert verify_reply(http, ROWS[0], audit.done(calls))["reward"] == 1.0


def test_a_reference_that_changes_nothing_is_solved_by_doing_nothing(http: TestClient) -> None:
    """Foreign data has such rows; ours have not, as the cheats show."""
    assert verify_reply(http, {**ROWS[0], "ground_truth": []}, "Nothing to do.")["reward"] == 1.0
