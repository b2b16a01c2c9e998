"""Prove the verifier of the workplace assistant: the final state of the office decides."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.authoring.verifier_cases import offline_server
from nemo_gym.authoring.verifier_proof import VerifierProof, offline_client, verify_reply
from resources_servers.workplace_assistant import audit
from resources_servers.workplace_assistant.app import WorkplaceServer, replay_calls
from resources_servers.workplace_assistant.generate import rows
from resources_servers.workplace_assistant.office import Office, differing_tables

ROWS = rows(30, seed=1)


class TestProof(VerifierProof):
    """Oracle, odd forms, wrong answers, cheats, broken rows, example data and fixture cases."""

    folder = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def http() -> TestClient:
    return offline_client(WorkplaceServer)


OMAR = "omar.okafor@northwind.example"
EVENT = {"event_name": "Demo", "participant_email": OMAR, "event_start": "2026-04-30 10:00:00", "duration": "30"}
MAIL = {"recipient": OMAR, "subject": "Hello", "body": "See you."}


def leave_same_office(one: audit.Calls, other: audit.Calls) -> bool:
    """Return whether two lists of calls leave the same office."""
    offices = [replay_calls((name, json.dumps(arguments)) for name, arguments in calls)[0] for calls in (one, other)]
    return differing_tables(*offices) == []


def test_there_are_27_tools_and_each_has_a_schema() -> None:
    """The model can only call tools that it knows."""
    tools = ROWS[0]["responses_create_params"]["tools"]

    assert len(tools) == 27
    assert len({tool["name"] for tool in tools}) == 27
    assert all(tool["description"] and tool["parameters"]["type"] == "object" for tool in tools)


def test_rows_are_different_tasks_of_every_category() -> None:
    """Repeated tasks would make the evaluation less precise."""
    tasks = rows(120, seed=7)

    assert len({row["responses_create_params"]["input"][1]["content"] for row in tasks}) == 120
    assert len({row["category"] for row in tasks}) == 6
    assert rows(40, seed=1) != rows(40, seed=2)


def test_the_order_of_calls_matters_only_if_it_changes_the_office() -> None:
    """Every way to the same office is right."""
    event, mail = ("calendar_create_event", EVENT), ("email_send_email", MAIL)
    later = ("calendar_create_event", {**EVENT, "event_start": "2026-05-01 10:00:00"})
    due = [("project_management_update_task", {"task_id": "00000500", "field": "due_date", "new_value": day})
           for day in ("2026-05-01", "2026-05-02")]  # fmt: skip

    assert leave_same_office([event, later, mail], [mail, later, event])
    assert not leave_same_office(due, due[::-1])
    assert leave_same_office([due[0], due[1]], [due[1]])


def test_case_matters_only_in_status_list_and_board() -> None:
    """People type names in many ways; states have one spelling."""
    mail, event = ("email_send_email", MAIL), ("calendar_create_event", EVENT)
    loud = ("email_send_email", {key: value.upper() for key, value in MAIL.items()})

    assert leave_same_office([mail], [loud])
    assert leave_same_office([event], [("calendar_create_event", {**EVENT, "event_name": "DEMO"})])
    task = {"task_id": "00000500", "field": "list_name", "new_value": "in progress"}
    assert replay_calls([("project_management_update_task", json.dumps(task))])[1]


def test_a_change_that_is_undone_does_not_count() -> None:
    """Only the final office is compared."""
    event_id = "00000380"
    name = Office.new().tables["calendar"]["00000300"]["event_name"]
    renamings = [("calendar_update_event", {"event_id": "00000300", "field": "event_name", "new_value": text})
               for text in ("Other", name.upper())]  # fmt: skip

    assert leave_same_office([("calendar_create_event", EVENT), ("calendar_delete_event", {"event_id": event_id})], [])
    assert leave_same_office(renamings, [])
    assert not leave_same_office(renamings[:1], [])


def test_sessions_do_not_share_an_office() -> None:
    """Thousands of rollouts use one server at once."""
    app = offline_server(WorkplaceServer).setup_webserver()
    ada, bob = TestClient(app), TestClient(app)
    for http in (ada, bob):
        http.post("/seed_session", json={})
    query = {"email_id": "00002000", "field": "subject"}

    assert ada.post("/email_delete_email", json={"email_id": "00002000"}).json() == {"output": "The email was deleted."}
    assert "Error" in ada.post("/email_get_email_information_by_id", json=query).json()["output"]
    assert "subject" in bob.post("/email_get_email_information_by_id", json=query).json()["output"]


def test_a_session_without_a_seed_is_refused(http: TestClient) -> None:
    """An empty result would look like an empty mailbox."""
    answer = TestClient(http.app).post("/email_search_emails", json={})

    assert answer.status_code == 409
    assert "not seeded" in answer.text


@pytest.mark.parametrize(
    ("tool", "arguments", "expected_text"),
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
def test_tools_return_results_or_reasons(tool: str, arguments: dict[str, Any], expected_text: str) -> None:
    """A model can correct its call only with the reason."""
    http = offline_client(WorkplaceServer)
    http.post("/seed_session", json={})

    assert expected_text in http.post(f"/{tool}", json=arguments).json()["output"]


def test_the_verdict_names_the_tables_that_differ(http: TestClient) -> None:
    """People read wrong answers first."""
    row = next(row for row in ROWS if row["category"] == "project_management")
    verdict = verify_reply(http, row, audit.finished_reply([("email_send_email", MAIL), ("email_delete_email", {})]))

    assert verdict["differing_tables"] == ["emails", "tasks"]
    assert verdict["refused_calls"] == ["email_delete_email: email_delete_email needs email_id"]


def test_tool_names_with_the_prefix_of_mcp_clients_are_accepted(http: TestClient) -> None:
    """The same tools can be offered over MCP."""
    calls = [(f"mcp__offline__{name}", arguments) for name, arguments in audit.reference_calls(ROWS[0])]

    assert verify_reply(http, ROWS[0], audit.finished_reply(calls))["reward"] == 1.0


def test_an_empty_reference_is_solved_by_no_call(http: TestClient) -> None:
    """Datasets of others have such rows; ours have none, as the cheats show."""
    assert verify_reply(http, {**ROWS[0], "ground_truth": []}, "Nothing to do.")["reward"] == 1.0
