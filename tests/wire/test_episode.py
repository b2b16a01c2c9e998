"""Openings and steps: how they change a conversation and how they travel."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.wire.episode import (
    NO_SIGNALS,
    Opening,
    Signals,
    Step,
    apply_opening,
    as_content,
    image_part,
    read_content,
    session_seed,
    text_part,
)

SIGNALS = st.builds(
    Signals,
    opening=st.booleans(),
    close=st.booleans(),
    parts=st.booleans(),
    reward=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    done=st.booleans(),
)


@given(SIGNALS)
def test_signals_come_back_from_their_header(signals: Signals) -> None:
    """A reward of 0.0 is not the absence of a reward."""
    assert Signals.parse(signals.header_value()) == signals
    assert signals.header_value().isascii()


@pytest.mark.parametrize("value", ["", "[]", "{", '{"reward": "1"}', '{"reward": true}'])
def test_an_invalid_header_is_refused(value: str) -> None:
    """A reward that is lost silently is worse than a failed rollout."""
    with pytest.raises(ValueError, match=r"."):
        Signals.parse(value)


def test_a_later_version_may_add_fields() -> None:
    """Servers and agents of one run may have different versions."""
    assert Signals.parse('{"done": true, "mood": "good"}') == Signals(done=True)


class Answer(BaseModel):
    n: int


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (None, ""),
        ("text", "text"),
        (1.5, "1.5"),
        ([], "[]"),
        ({"type": "dog"}, '{"type":"dog"}'),
        (Answer(n=1), '{"n":1}'),
        (text_part("a"), [{"type": "input_text", "text": "a"}]),
        ([text_part("a"), "b"], '[{"type":"input_text","text":"a"},"b"]'),
    ],
)
def test_the_model_sees_text_parts_or_json(value: object, content: object) -> None:
    """Only a value that consists of content parts is shown as such."""
    assert as_content(value) == content


def test_an_invalid_part_is_refused() -> None:
    """The endpoint would refuse it later, without a hint at the tool."""
    with pytest.raises(ValueError, match="detail"):
        as_content([image_part(b"x", detail="huge")])
    with pytest.raises(ValueError, match="the content parts are invalid"):
        read_content(b'[{"type": "sound"}]', Signals(parts=True))


def test_a_body_that_looks_like_parts_is_text_without_the_signal() -> None:
    """The text of a web page must not become an image, a reward or an end."""
    body = b'[{"type": "input_image", "image_url": "http://x"}]'

    assert read_content(body, NO_SIGNALS) == body.decode()


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "much"])
def test_a_step_with_an_unusable_reward_cannot_be_built(reward: object) -> None:
    """The error names the line that built it."""
    with pytest.raises(ValidationError, match="reward"):
        Step("x", reward=reward)


def test_an_opening_leaves_the_row_unchanged() -> None:
    """The row is sent again in a retry."""
    params = NeMoGymResponseCreateParamsNonStreaming(input="Go.", temperature=0.5)
    opening = Opening(messages=[{"role": "user", "content": "North?"}], tools=[{"type": "function", "name": "go"}])

    opened = apply_opening(params, opening)

    assert (params.input, params.tools) == ("Go.", [])
    assert [item.content for item in opened.input] == ["Go.", "North?"]
    dump = opened.model_dump(exclude_unset=True)
    assert (dump["tools"], dump["temperature"]) == ([{"type": "function", "name": "go"}], 0.5)


def test_a_seed_depends_on_the_task_alone() -> None:
    """Repeats, retries and the verification of a task have the same seed; another task has another one."""
    task = {"board": "empty", "level": 3}
    noise = {"_ng_task_index": 4, "_ng_rollout_index": 1, "agent_ref": {"name": "a"}, "responses_create_params": {}}

    assert session_seed({**task, **noise}) == session_seed(task) < 2**32
    assert session_seed({**task, "level": 4}) != session_seed(task)
    assert session_seed({**task, "seed": 7}) == 7
