"""What the model said last, without its reasoning."""

import pytest

from nemo_gym.grading.last_text import assistant_texts, last_assistant_text, without_reasoning
from nemo_gym.grading.verdict import Extracted, Unparsed
from nemo_gym.wire.responses import NeMoGymResponse


def message(text: str) -> dict[str, object]:
    return {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }


def response(*items: dict[str, object]) -> NeMoGymResponse:
    return NeMoGymResponse.model_validate(
        {
            "id": "r",
            "created_at": 0,
            "model": "m",
            "object": "response",
            "output": list(items),
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
        }
    )


@pytest.mark.parametrize(
    "text",
    [
        "<think>so A</think>B",
        "so A</think>B",
        "<think>A</think>\n<think>C</think>B",
        "<THINK>A</THINK>B",
        "<thinking>A</thinking>B",
        "<thought>A</thought>B",
        "<reasoning>A</reasoning>B",
        "<reason>A</reason>B",
        "<scratchpad>A</scratchpad>B",
        "<seed:think>A</seed:think>B",
        "[THINK]A[/THINK]B",
        "◁think▷A◁/think▷B",
        "<|begin_of_thought|>A<|end_of_thought|>B",
        "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>final<|message|>B",
        "B",
    ],
)
def test_reasoning_is_stripped_whatever_its_tags(text: str) -> None:
    """An option weighed in the reasoning is not the answer."""
    found = without_reasoning(text)

    assert isinstance(found, Extracted)
    assert found.value.strip() == "B"
    assert text[slice(*found.span)] == found.value


@pytest.mark.parametrize(
    "text", ["<think>the answer is B", "<think>A</think>B<think>or C", "<|channel|>analysis<|message|>B", "[THINK]B"]
)
def test_reasoning_that_is_never_closed_hides_the_answer(text: str) -> None:
    """The model was cut off before it answered."""
    assert without_reasoning(text) == Unparsed("the reasoning is not closed")


@pytest.mark.parametrize("text", ["", "  \n", "<think>A</think>", "<think>A</think>\n "])
def test_nothing_said_is_unparsed(text: str) -> None:
    """An empty answer must not equal an empty gold."""
    assert isinstance(without_reasoning(text), Unparsed)


def test_only_the_last_message_counts() -> None:
    """What was said before a tool call is not the answer."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "f", "status": "completed"}
    reasoning = {"type": "reasoning", "id": "x", "summary": [{"type": "summary_text", "text": "Answer: C"}]}
    whole = response(message("Answer: A"), call, reasoning, message("<think>D</think>Answer: B"))

    assert assistant_texts(whole) == ["Answer: A", "<think>D</think>Answer: B"]
    found = last_assistant_text(whole)
    assert isinstance(found, Extracted)
    assert found.value == "Answer: B"


def test_a_response_without_a_message_is_unparsed() -> None:
    """A rollout that ended in a tool call has no answer."""
    assert isinstance(last_assistant_text(response()), Unparsed)
