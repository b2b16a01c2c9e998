"""Laws of the splice: sampled tokens stay, the template adds only what follows them, and changes are recognized."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_api_models.vllm_model.tests.mock_engine import IM_END, MockEngine, decode, encode, sample
from responses_api_models.vllm_model.token_splice import CannotSplice, TemplateEnds, Turn, continues, splice
from responses_api_models.vllm_model.token_transport import generate_request, probe_requests

Json = dict[str, Any]
TEXT = st.text(alphabet="ab \nwetherciy11", max_size=12)
ENGINE = MockEngine(lambda turn: "")
STARTS = st.sampled_from(["<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n"])


def template_ends(engine: MockEngine) -> TemplateEnds:
    prompt, start, first, second = map(engine.render_ids, probe_requests({"model": "m"}))
    ends = TemplateEnds.of(prompt, start, (first, second))
    assert ends is not None
    return ends


def play(
    engine: MockEngine, questions: list[str], answers: list[str], cut: list[bool]
) -> tuple[list[Json], list[Turn]]:
    """Run a conversation with spliced prompts; return its messages with a last question, and its turns."""
    messages: list[Json] = []
    turns: list[Turn] = []
    for question, answer, is_cut in zip(questions, answers, cut, strict=True):
        messages.append({"role": "user", "content": question})
        prompt = engine.render_ids({"messages": messages})
        if turns:
            prompt = splice(prompt, turns, template_ends(engine)).token_ids
        generated = sample(answer) if is_cut and answer else [*sample(answer), IM_END]
        turns.append(Turn(prompt, generated, is_closed=not (is_cut and answer)))
        messages.append({"role": "assistant", "content": answer})
    messages.append({"role": "user", "content": "last question"})
    return messages, turns


CONVERSATION = st.integers(1, 4).flatmap(
    lambda size: st.tuples(*(st.lists(each, min_size=size, max_size=size) for each in (TEXT, TEXT, st.booleans())))
)


@given(conversation=CONVERSATION, start=STARTS)
def test_the_spliced_prompt_is_the_turns_and_then_the_template(conversation: Any, start: str):
    """One sequence holds every token as it was sampled, and reads like the conversation."""
    engine = MockEngine(lambda turn: "", answer_start=start)
    messages, turns = play(engine, *conversation)
    rendered = engine.render_ids({"messages": messages})

    spliced = splice(rendered, turns, template_ends(engine)).token_ids

    assert all(continues(spliced, turn) for turn in turns)
    tail = encode(f"\n<|im_start|>user\nlast question<|im_end|>\n{start}")
    assert spliced[-len(tail) :] == tail
    assert decode(spliced).replace(start, ENGINE.answer_start) == decode(rendered).replace(start, ENGINE.answer_start)


@given(conversation=CONVERSATION, data=st.data())
def test_a_changed_question_is_recognized(conversation: Any, data: st.DataObject):
    """Old tokens of another conversation must not be put in front of a new question."""
    messages, turns = play(ENGINE, *conversation)
    index = data.draw(st.sampled_from(range(0, len(messages) - 1, 2)))
    messages[index] = {"role": "user", "content": messages[index]["content"] + "x"}

    with pytest.raises(CannotSplice, match="was changed"):
        splice(ENGINE.render_ids({"messages": messages}), turns, template_ends(ENGINE))


def test_a_conversation_with_fewer_turns_is_recognized():
    """The agent may have dropped the beginning of the conversation."""
    messages, turns = play(ENGINE, ["a", "b"], ["c", "d"], [False, False])

    with pytest.raises(CannotSplice):
        splice(ENGINE.render_ids({"messages": messages[-1:]}), turns, template_ends(ENGINE))


def test_an_end_token_that_the_template_does_not_write_stays():
    """Llama ends a tool call with another token than its template; the sampled one is what the model has seen."""
    other_end = encode("|")[0]
    prompt = ENGINE.render_ids({"messages": [{"role": "user", "content": "a"}]})
    turn = Turn(prompt, [*sample("b"), other_end], is_closed=True)
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rendered = ENGINE.render_ids({"messages": [*messages, {"role": "user", "content": "c"}]})

    spliced = splice(rendered, [turn], template_ends(ENGINE)).token_ids

    assert decode(spliced) == decode(rendered).replace("b<|im_end|>", "b|")


@pytest.mark.parametrize(
    ("message", "is_closed"),
    [
        ({"finish_reason": "stop"}, True),
        ({"finish_reason": "tool_calls"}, True),
        ({"finish_reason": "stop", "stop_reason": 7}, True),
        ({"finish_reason": "stop", "stop_reason": "END"}, False),
        ({"finish_reason": "length"}, False),
        ({}, False),
    ],
)
def test_only_a_token_closes_a_turn(message: Json, is_closed: bool):
    """After a length limit or a stop string the model has not ended its turn."""
    assert Turn.of({"prompt_token_ids": [1], "generation_token_ids": [2], **message}).is_closed is is_closed


def test_a_template_without_an_end_of_turn_cannot_be_spliced():
    """Without a token after the answer, the place where the template goes on is unknown."""
    assert TemplateEnds.of([1], [1, 2], ([1, 2, 5], [1, 2, 6])) is None


def test_placeholders_of_images_move_with_their_message():
    """vLLM finds images by their position in the prompt, and longer answers move them."""
    messages, turns = play(ENGINE, ["an image"], ["weather"], [False])
    rendered = ENGINE.render_ids({"messages": messages})
    spliced = splice(rendered, turns, template_ends(ENGINE))
    assert len(spliced.token_ids) > len(rendered)
    before, after = 3, len(rendered) - 10
    features = {"mm_placeholders": {"image": [{"offset": before, "length": 2}, {"offset": after, "length": 2}]}}

    request = generate_request({"features": features, "token_ids": rendered, "sampling_params": {}}, {}, spliced)

    offsets = [part["offset"] for part in request["features"]["mm_placeholders"]["image"]]
    assert offsets == [before, len(spliced.token_ids) - 10]
    assert [request["token_ids"][offset] for offset in offsets] == [rendered[before], rendered[after]]
