"""The last box."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.grading.boxed import boxes, last_boxed
from nemo_gym.grading.verdict import Extracted, Unparsed


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
    """Braces nest, escaped braces do not count."""
    found = last_boxed(text)

    assert isinstance(found, Extracted)
    assert found.value == value
    assert text[slice(*found.span)].startswith("\\")


@pytest.mark.parametrize(
    "text", ["", "5", r"\boxed{", r"\boxed{1} and \boxed{2", r"\boxed{}", r"\boxed{ $ }", r"\boxedd{5}"]
)
def test_a_malformed_last_box_is_no_answer(text: str) -> None:
    """Falling back to an earlier box would grade what the model went on from."""
    assert isinstance(last_boxed(text), Unparsed)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab{}\\ $\n", max_size=30).filter(lambda t: not t.endswith("\\")))
def test_what_is_put_into_a_box_comes_out(content: str) -> None:
    """Whenever its braces are balanced."""
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
    found, dangling = boxes("x \\boxed{" + content + "} y")

    assert not dangling
    assert [box.value for box in found] == [content]
