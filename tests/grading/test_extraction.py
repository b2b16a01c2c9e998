"""Extraction of the final text, boxes and fenced blocks from a reply."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.grading.extraction import (
    assistant_texts,
    fenced_blocks,
    find_boxes,
    last_assistant_text,
    last_boxed,
    last_fenced_block,
    strip_reasoning,
)
from nemo_gym.grading.result_types import ExtractedAnswer, NoAnswer
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
def test_reasoning_is_stripped_for_every_tag(text: str) -> None:
    """An option weighed in the reasoning is not the answer."""
    extraction = strip_reasoning(text)

    assert isinstance(extraction, ExtractedAnswer)
    assert extraction.value.strip() == "B"
    assert text[slice(*extraction.span)] == extraction.value


@pytest.mark.parametrize(
    "text", ["<think>the answer is B", "<think>A</think>B<think>or C", "<|channel|>analysis<|message|>B", "[THINK]B"]
)
def test_reasoning_that_is_never_closed_hides_the_answer(text: str) -> None:
    """The model was cut off before it answered."""
    assert strip_reasoning(text) == NoAnswer("the reasoning is not closed")


@pytest.mark.parametrize("text", ["", "  \n", "<think>A</think>", "<think>A</think>\n "])
def test_an_empty_reply_is_unparsed(text: str) -> None:
    """An empty answer must not equal an empty gold."""
    assert isinstance(strip_reasoning(text), NoAnswer)


def test_only_the_last_message_counts() -> None:
    """Text before a tool call is not the answer."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "f", "status": "completed"}
    reasoning = {"type": "reasoning", "id": "x", "summary": [{"type": "summary_text", "text": "Answer: C"}]}
    whole = response(message("Answer: A"), call, reasoning, message("<think>D</think>Answer: B"))

    assert assistant_texts(whole) == ["Answer: A", "<think>D</think>Answer: B"]
    extraction = last_assistant_text(whole)
    assert isinstance(extraction, ExtractedAnswer)
    assert extraction.value == "Answer: B"


def test_a_response_without_a_message_is_unparsed() -> None:
    """A rollout that ended in a tool call has no answer."""
    assert isinstance(last_assistant_text(response()), NoAnswer)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"\boxed{5}", "5"),
        (r"so \boxed {5} it is", "5"),
        (r"\boxed{ 5 }", "5"),
        (r"\fbox{5}", "5"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\text{a } b}", r"\text{a } b"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{1 + \boxed{2}}", r"1 + \boxed{2}"),
        (r"\boxed{oops \boxed{2}", "2"),
        (r"} \boxed{5} }", "5"),
        (r"\boxed 7$", "7"),
        (r"\boxed{a\\{b}}", r"a\\{b}"),
    ],
)
def test_the_last_complete_box_is_found(text: str, value: str) -> None:
    """Nested braces belong to the answer, escaped ones are text."""
    extraction = last_boxed(text)

    assert isinstance(extraction, ExtractedAnswer)
    assert extraction.value == value
    assert text[slice(*extraction.span)].startswith("\\")


@pytest.mark.parametrize(
    "text", ["", "5", r"\boxed{", r"\boxed{1} and \boxed{2", r"\boxed{}", r"\boxed{ $ }", r"\boxedd{5}"]
)
def test_a_malformed_last_box_is_no_answer(text: str) -> None:
    """An earlier box is a step that the model went on from."""
    assert isinstance(last_boxed(text), NoAnswer)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab{}\\ $\n", max_size=30).filter(lambda t: not t.endswith("\\")))
def test_balanced_content_of_a_box_is_extracted_unchanged(content: str) -> None:
    """Grading must compare exactly the content that was written."""
    depth, escaped = 0, False
    for character in content:
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character in "{}":
            depth += 1 if character == "{" else -1
            if depth < 0:
                return
    if depth or escaped:
        return
    boxes, has_open_box = find_boxes("x \\boxed{" + content + "} y")

    assert not has_open_box
    assert [box.value for box in boxes] == [content]


def test_fenced_blocks_have_their_language_as_rule() -> None:
    """Code environments grade the last block of their language."""
    text = "```python\nx = 1\n```\ntext\n~~~\ny\n~~~\n```open\n"

    assert [(block.rule, block.value) for block in fenced_blocks(text)] == [("python", "x = 1\n"), ("", "y\n")]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("```\na\n```\n```\nb\n```\n", "b\n"),
        ("- list:\n  ```\n  a\n    b\n  ```\n", "a\n  b\n"),
        ("````\n```\n````\n", "```\n"),
        ("```\na\n```\n```\nb", "the last fenced block is not closed"),
        ("```\na\n```trailing", "the last fenced block is not closed"),
        ("```\n \n```", "the last fenced block is empty"),
        ("text", "no fenced block"),
        ("x" * (1 << 20) + "y", "longer than 1,048,576 characters"),
    ],
)
def test_the_last_fenced_block_is_read_as_in_markdown(text: str, value: str) -> None:
    """An unclosed block means that the model was cut off, so no earlier block is graded."""
    extraction = last_fenced_block(text)

    assert (extraction.value if isinstance(extraction, ExtractedAnswer) else extraction.reason) == value
