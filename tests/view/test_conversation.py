"""A record becomes the conversation that took place, however long and however odd."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.view.conversation import (
    LONGEST_TEXT,
    event_text,
    event_tokens,
    find_in_events,
    read_events,
    read_judgements,
    read_timings,
)
from nemo_gym.view.table_row import build_table_row
from tests.view.records import record, timed_record


def test_a_conversation_reads_in_order() -> None:
    """Readers follow cause and effect."""
    total, shown = read_events(record())

    assert total == 5
    assert [(event["role"], event["kind"]) for event in shown] == [
        ("user", "message"),
        ("assistant", "reasoning"),
        ("assistant", "tool_call"),
        ("tool", "tool_result"),
        ("assistant", "message"),
    ]
    assert [event["text"] for event in shown] == ["What is 0 + 1?", "let me think", '{\n  "a": 1\n}', "4", "It is 4."]
    assert shown[2]["name"] == "add"


def test_a_long_text_is_cut_and_can_be_read_on() -> None:
    """Fifty megabytes in one answer must not end up in one page."""
    text = "abcde" * LONGEST_TEXT
    stored = record(answer=text)

    shown = read_events(stored)[1][-1]

    assert (len(shown["text"]), shown["length"]) == (LONGEST_TEXT, len(text))
    assert event_text(stored, 4, LONGEST_TEXT) == text[LONGEST_TEXT : 2 * LONGEST_TEXT]


def test_events_come_in_pages() -> None:
    """A rollout may have ten thousand events."""
    stored = record()
    stored["response"]["output"] = [{"role": "assistant", "content": str(number)} for number in range(300_000)]

    total, shown = read_events(stored, start=200_001, count=50)

    assert total == 300_001
    assert [event["text"] for event in shown] == [str(number) for number in range(200_000, 200_050)]


def test_instructions_and_plain_input_are_part_of_it() -> None:
    """They explain what the model did."""
    stored = {"responses_create_params": {"instructions": "Be brief.", "input": "Hello"}}

    assert [(event["role"], event["text"]) for event in read_events(stored)[1]] == [
        ("system", "Be brief."),
        ("user", "Hello"),
    ]


def test_only_pictures_inside_the_record_are_shown() -> None:
    """A page that loads pictures from elsewhere tells elsewhere who is looking."""
    inside = "data:image/png;base64,iVBORw0KGgo="
    parts = [
        {"type": "input_image", "image_url": url} for url in (inside, "https://elsewhere/p.png", "data:text/html,x")
    ]
    stored = {"responses_create_params": {"input": [{"role": "user", "content": parts}]}}

    assert read_events(stored)[1][0]["images"] == [
        inside,
        "not shown: https://elsewhere/p.png",
        "not shown: data:text/html,x",
    ]


def test_tokens_are_shown_with_their_log_probabilities() -> None:
    """Trainers debug with them."""
    stored = record()
    stored["response"]["output"][-1] |= {
        "prompt_token_ids": list(range(100)),
        "generation_token_ids": [7, 8, 9],
        "generation_log_probs": [-0.1, -0.2, -0.3],
    }

    assert read_events(stored)[1][-1]["tokens"] == 3
    events = event_tokens(stored, 4)
    assert (events["prompt_count"], events["ids"], events["log_probs"]) == (100, [7, 8, 9], [-0.1, -0.2, -0.3])


def test_phases_say_more_than_single_calls() -> None:
    """They add up to the whole rollout; calls of the model alone do not."""
    stored = timed_record(0, 3.0, model=2.0, verify=1.0) | {"ng_model_call_capture": {"calls": [{"latency_ms": 5}]}}

    assert read_timings(stored) == [{"name": "model", "ms": 2000.0}, {"name": "verify", "ms": 1000.0}]


def test_judges_are_shown_with_what_they_were_asked_and_what_they_said() -> None:
    """A verdict that cannot be read is not trusted."""
    request = {"input": [{"role": "user", "content": "Are 1/2 and 0.5 equal?"}]}
    answer = {"output": [{"role": "assistant", "content": [{"type": "output_text", "text": "[[A=B]]"}]}]}
    stored = record(
        judge_evaluations=[
            {"responses_create_params": request, "response": answer, "verdict_label": "[[A=B]]"},
            {"response": {}},
            "no judgement at all",
        ]
    )

    assert read_judgements(stored) == [
        {"asked": "Are 1/2 and 0.5 equal?", "answered": "[[A=B]]", "verdict": "[[A=B]]"},
        {"asked": "", "answered": "", "verdict": "none"},
    ]


def test_calls_that_were_timed_are_listed() -> None:
    """Other tools store only calls, not phases."""
    stored = record(
        ng_model_call_capture={"calls": [{"model_ref": {"name": "m"}, "latency_ms": 5}, {"latency_ms": None}]}
    )

    assert read_timings(stored) == [{"name": "m", "ms": 5.0}]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(
    [
        "responses_create_params",
        "response",
        "reward",
        "input",
        "output",
        "content",
        "usage",
        "_ng_failure",
        "type",
        "role",
    ]
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(NAMES, JSON | st.dictionaries(NAMES, JSON, max_size=3), max_size=6))
def test_no_record_is_too_odd_to_look_at(stored: dict[str, object]) -> None:
    """Files of other tools, and of broken ones, are the ones people most need to look at."""
    build_table_row(stored, 0)
    total, shown = read_events(stored)
    assert total == len(shown) or total > 200
    json.dumps(shown)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "1", None, [1]])
def test_a_reward_that_is_not_finite_is_not_scored(reward: object) -> None:
    """It must not enter a mean on the page."""
    facts = build_table_row({"reward": reward}, 0)

    assert (facts.reward, facts.outcome) == (None, "failed")


def test_a_text_is_found_in_the_whole_conversation() -> None:
    """The page shows parts of a long conversation: what stands in another part must be found, too."""
    stored = record(answer="x" * LONGEST_TEXT + " The Needle.")

    assert find_in_events(stored, "needle") == [4]
    assert find_in_events(stored, "LET ME THINK") == [1]
    assert find_in_events(stored, "add") == [2], "tools are found by their name"
    assert (find_in_events(stored, "absent"), find_in_events(stored, "")) == ([], [])


def test_images_of_a_tool_output_are_shown() -> None:
    """A screenshot or a board is what the model saw; without it, its next step makes no sense."""
    picture = "data:image/png;base64,AAAA"
    parts = [{"type": "input_text", "text": "The board:"}, {"type": "input_image", "image_url": picture}]
    stored = record()
    stored["response"]["output"][2]["output"] = parts

    event = read_events(stored)[1][3]

    assert (event["kind"], event["text"], event["images"]) == ("tool_result", "The board:", [picture])


@pytest.mark.parametrize(
    ("answer", "expected", "contains"),
    [
        ("So it is 42.", 42, 1),
        ("So it is 42, or 43", 42, 1),
        (r"\boxed{42}", 42, 1),
        ("Answer\n42", 42, 1),
        ("So it is 142.", 42, 0),
        ("So it is 4.42", 42, 0),
        ("So it is 42.5", 42, 0),
        ("So it is -42", 42, 0),
        ("First 142, then 42", 42, 1),
        ("blueish", "blue", 0),
        ("It is 4", 4, 0),
        ("42 " + "x" * 500, 42, 0),
        ("It is so.", "", 0),
        ("", "42", 0),
    ],
)
def test_an_answer_contains_the_expected_one_as_whole_words(answer: str, expected: Any, contains: int) -> None:
    """A reward of 0 beside the right answer names a verifier that is too strict; parts of other numbers do not."""
    row = build_table_row(record(0, 0, 0.0, answer=answer, expected_answer=expected), 0)

    assert row.has_expected == contains
