"""Prove the verifier of calendars: every schedule that keeps the rules is right, no other is."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.authoring.verifier_proof import VerifierProof, offline_client, verify_reply
from resources_servers.calendar import audit
from resources_servers.calendar.app import CalendarServer, last_list
from resources_servers.calendar.generate import rows
from resources_servers.calendar.scheduling import parse_constraint, parse_time

ROW = rows(1, seed=1)[0]


class TestProof(VerifierProof):
    """Oracle, odd forms, wrong answers, cheats, broken rows, example data and fixture cases."""

    folder = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def http() -> TestClient:
    return offline_client(CalendarServer)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("10am", 600),
        ("10 AM", 600),
        ("10:30am", 630),
        ("12am", 0),
        ("12pm", 720),
        ("12:15 a.m.", 15),
        ("1pm", 780),
        ("13:00", 780),
        ("09:05", 545),
        ("14:00:00", 840),
        ("noon", 720),
        ("１０ａｍ", 600),
        ("0am", None),
        ("13pm", None),
        ("24:00", None),
        ("10:60", None),
        ("10", None),
        ("ten", None),
        ("", None),
        ("10m", None),
        ("9" * 100, None),
    ],
)
def test_times_of_day_are_read_or_refused(text: str, at: int | None) -> None:
    """A time read wrongly is a schedule judged wrongly."""
    assert parse_time(text) == at


@pytest.mark.parametrize(
    ("text", "allowed", "forbidden"),
    [
        ("before 10am", (540, 600), (541, 601)),
        ("after 2pm", (840, 900), (839, 899)),
        ("between 1pm and 3pm", (780, 900), (779, 840)),
        ("between 1pm - 3pm", (780, 900), (841, 901)),
        ("at 9:30am", (570, 600), (571, 601)),
    ],
)
def test_constraints_allow_their_edges_and_nothing_beyond(
    text: str, allowed: tuple[int, int], forbidden: tuple[int, int]
) -> None:
    """`before` is about the end, `after` about the beginning, `between` about both."""
    constraint = parse_constraint(text)

    assert constraint is not None
    assert (constraint.allows(*allowed), constraint.allows(*forbidden)) == (True, False)


def test_a_row_without_events_is_always_right(http: TestClient) -> None:
    """As the data contract says; the rows of this folder always have some."""
    row = {**ROW, "exp_cal_state": {}}

    assert verify_reply(http, row, "whatever")["reward"] == 1.0


def test_the_reason_names_the_event(http: TestClient) -> None:
    """People look at wrong answers first."""
    verdict = verify_reply(http, ROW, audit.wrong(ROW)[3])

    assert "lasts" in verdict["reject_reason"]
    assert verdict["extracted_answer"].startswith("[{")


@given(st.text(alphabet='[]{}",:1a \\\n', max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_text_is_searched_without_an_error(text: str) -> None:
    """Models write all sorts of brackets."""
    entries = last_list(text)

    assert entries is None or isinstance(entries, list)


@given(st.lists(st.fixed_dictionaries({"event_id": st.integers(), "start_time": st.text(max_size=9)}), max_size=4))
@settings(max_examples=60, deadline=None)
def test_a_list_is_found_behind_words(events: list[dict[str, Any]]) -> None:
    """Brackets and quotes inside its texts must not hide the list."""
    assert last_list(f"so [see above] {json.dumps(events)} is it [1]") == events
