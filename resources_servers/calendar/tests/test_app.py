"""The oracle scores full in many forms; null and cheats score nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.environment.proof import VerifierProof, client_of, verdict
from resources_servers.calendar import audit
from resources_servers.calendar.app import VERIFIER_FIXTURE, CalendarServer, last_list
from resources_servers.calendar.generate import rows
from resources_servers.calendar.scheduling import constraint, minutes

ROWS = rows(20, seed=1)


class TestProof(VerifierProof):
    """The oracle, odd forms, close answers, cheats and broken rows."""

    audit = audit
    server = CalendarServer
    fixture = VERIFIER_FIXTURE
    generated = ROWS
    examples = rows(5, seed=0)
    data = Path(__file__).parent.parent / "data"


@pytest.fixture(scope="module")
def http() -> TestClient:
    return client_of(CalendarServer)


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
    assert minutes(text) == at


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
    kept = constraint(text)

    assert kept is not None
    assert (kept.allows(*allowed), kept.allows(*forbidden)) == (True, False)


def test_a_row_without_events_is_always_right(http: TestClient) -> None:
    """As the data contract has it; our own rows always have some."""
    row = {**ROWS[0], "exp_cal_state": {}}

    assert verdict(http, row, "whatever")["reward"] == 1.0


def test_the_reason_names_the_event(http: TestClient) -> None:
    """People look at wrong answers first."""
    said_wrong = verdict(http, ROWS[0], audit.wrong(ROWS[0])[3])

    assert "lasts" in said_wrong["reject_reason"]
    assert said_wrong["extracted_answer"].startswith("[{")


@given(st.text(alphabet='[]{}",:1a \\\n', max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_text_is_searched_without_an_error(text: str) -> None:
    """Models write all sorts of brackets."""
    found = last_list(text)

    assert found is None or isinstance(found, list)


@given(st.lists(st.fixed_dictionaries({"event_id": st.integers(), "start_time": st.text(max_size=9)}), max_size=4))
@settings(max_examples=60, deadline=None)
def test_a_list_is_found_behind_words(events: list[dict[str, Any]]) -> None:
    """Whatever its texts contain, brackets and quotes too."""
    assert last_list(f"so [see above] {json.dumps(events)} is it [1]") == events
