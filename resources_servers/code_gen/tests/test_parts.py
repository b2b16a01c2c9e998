"""Blocks are read and outputs compared without a sandbox."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.grading.extraction import last_fenced_block, scan_fences
from nemo_gym.grading.result_types import ExtractedAnswer, NoAnswer
from nemo_gym.sandbox.python import PythonResult
from resources_servers.code_gen.compare import output_difference, value_difference
from resources_servers.code_gen.trial import ProgramTest, batches, is_own_failure, reports


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```python\na\n```", "a\n"),
        ("```\na\n```", "a\n"),
        ("~~~py\na\n~~~", "a\n"),
        ("````\n```\na\n```\n````", "```\na\n```\n"),
        ("```\na\n```\n```\nb\n```", "b\n"),
        ("  - so:\n    ```python\n    if a:\n        b\n    ```\n", "if a:\n    b\n"),
        ("```python\r\na\r\n```\r\n", "a\r\n"),
        ("```python\na\n   ```", "a\n"),
        ("```python\ns = '''\n`` `\n'''\n```", "s = '''\n`` `\n'''\n"),
    ],
)
def test_the_last_block_is_read(text: str, expected: str) -> None:
    """Models write Markdown in all its forms."""
    block = last_fenced_block(text)

    assert isinstance(block, ExtractedAnswer)
    assert block.value == expected


@pytest.mark.parametrize("text", ["", "a", "`a`", "```python\na", "```\na\n```\n```\nb", "```\n\n```", "x ```\na\n```"])
def test_a_reply_without_a_closed_block_has_no_program(text: str) -> None:
    """An answer that was cut off is not the one before it."""
    assert isinstance(last_fenced_block(text), NoAnswer)


def test_a_block_can_be_selected_by_name() -> None:
    """A query before the Python that would run it."""
    text = "```sql\nSELECT 1\n```\n```python\nx\n```"

    block = last_fenced_block(text, ("sql",))

    assert isinstance(block, ExtractedAnswer)
    assert block.value == "SELECT 1\n"
    assert isinstance(last_fenced_block("```text\nSELECT 1\n```", ("sql",)), NoAnswer)


@given(st.text(alphabet="`~ ab\n\r", max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_text_has_blocks_that_stand_where_they_say(text: str) -> None:
    """The span is what the viewer shows."""
    extracted, _ = scan_fences(text)

    ends = [0, *(block.span[1] for block in extracted)]
    assert all(end <= block.span[0] <= block.span[1] for end, block in zip(ends, extracted, strict=False))


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("1\n", "1"),
        ("  1 \n\n", "1"),
        ("1\r\n2\r\n", "1\n2"),
        ("1.0", "1"),
        ("1.50 2", "1.5 2.0"),
        ("1e2", "100"),
        ("-0", "0"),
        ("+3", "3"),
        ("a  b", "a  b"),
        (" a\n  b ", "a\nb"),
        ("1" * 5000, "1" * 5000 + ".0"),
    ],
)
def test_outputs_that_say_the_same_are_the_same(printed: str, expected: str) -> None:
    """Spaces at the ends and the form of a number are no part of a problem."""
    assert output_difference(printed, expected) is None


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("", "1"),
        ("2", "1"),
        ("1 1", "1"),
        ("1\n1", "1"),
        ("1", "1\n1"),
        ("a b", "a  b"),
        ("0.30000000000000004", "0.3"),
        ("nan", "NaN"),
        ("1_0", "10"),
        ("١", "1"),
        ("inf", "Infinity"),
        ("yes", "YES"),
        ("x 1.0", "x 1"),
        ("1\n\n2", "1\n2"),
    ],
)
def test_outputs_that_differ_are_different(printed: str, expected: str) -> None:
    """A comparison that accepts a wrong output teaches it."""
    assert output_difference(printed, expected)


@pytest.mark.parametrize(
    ("returned", "expected", "same"),
    [
        ("[1, 2]", [1, 2], True),
        ("1.0", 1, True),
        ('"a"', "a", True),
        ("null", None, True),
        ("[2, 1]", [1, 2], False),
        ('"1"', 1, False),
        ("NaN", 1, False),
        ("", None, False),
        ("[[1]", [[1]], False),
        ("[" * 100_000, [], False),
        ("[" * 100_000 + "]" * 100_000, [], False),
    ],
)
def test_returned_values_are_compared_as_data(returned: str, expected: object, same: bool) -> None:
    """Outside the box, the output of a program is only text."""
    assert (value_difference(returned, expected) is None) is same


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda c: st.lists(c, max_size=4)))
@settings(max_examples=60, deadline=None)
def test_every_value_is_equal_to_itself(value: object) -> None:
    """A right answer cannot be lost on the way out of the box."""
    assert value_difference(json.dumps(value), value) is None


def test_boxes_get_few_tests_first_and_never_too_much_text() -> None:
    """Most wrong programs fail early, and the expected outputs of a test may be large."""
    small = [ProgramTest("1", "1", 2)] * 100
    large = [ProgramTest("", "", 7 << 20)] * 3

    assert [len(batch) for batch in batches(small)] == [4, 32, 64]
    assert [len(batch) for batch in batches(large)] == [1, 1, 1]
    assert list(batches([])) == []


@given(st.text(max_size=200))
@settings(max_examples=60, deadline=None)
def test_any_output_of_a_box_can_be_read(text: str) -> None:
    """The program may have written into the channel."""
    assert all(isinstance(report, dict) for report in reports(text))


STARTED = '{"compiled": true}\n'


@pytest.mark.parametrize(
    ("ran", "expected"),
    [
        (PythonResult(stderr="PermissionError: [Errno 1] no", kind="forbidden", exit_code=1), True),
        (PythonResult(STARTED, "PermissionError: [Errno 1] no", "forbidden", 1), True),
        (PythonResult(stderr="ModuleNotFoundError: no", exit_code=1), True),
        (PythonResult(stderr="OSError: [Errno 28] full", kind="disk", exit_code=1), True),
        (PythonResult(STARTED, "", "forbidden", 128 + 31), False),  # the program sent SIGSYS
        (PythonResult(STARTED, "KeyboardInterrupt", None, 1), False),  # the program sent SIGINT
        (PythonResult(kind="memory", exit_code=1), False),
        (PythonResult(kind="timeout", exit_code=137), False),
        (PythonResult(kind="crashed", exit_code=139), False),
        (PythonResult(STARTED), False),
    ],
)
def test_a_failure_of_our_own_code_is_no_verdict(ran: PythonResult, expected: bool) -> None:
    """A defect of the machine must not score a right program 0.0, and a program must not avoid its score."""
    assert is_own_failure(ran) is expected
