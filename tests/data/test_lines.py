"""A line is a row, or it is told what is wrong with it."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.data.lines import exact_row, read_line, row_line

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ROWS = st.dictionaries(st.text(max_size=5), JSON, max_size=4)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b'{"a":', "the line is not JSON: expecting value"),
        (b"{'a': 1}", "the line is not JSON: expecting property name"),
        (b'{"a": 1} x', "the line is not JSON: extra data"),
        (b'{"a": 1,}', "the line is not JSON"),
        (b"", "the line is empty"),
        (b" \t", "the line is empty"),
        (b'\xef\xbb\xbf{"a": 1}', "the line begins with a byte order mark (BOM)"),
        (b'{"a": 1}\r', "the line ends in CRLF"),
        (b"\r", "the line is empty"),
        (b'{"a": 1, "a": 2}', "the key 'a' is given more than once"),
        (b'{"a": "\\u0022", "b\\u0022": 1, "c": {"d": 1, "d": 1}}', "c: the key 'd' is given more than once"),
        (b'{"a": [{"b": NaN}]}', "a[*].b: NaN is not JSON"),
        (b'{"a": -Infinity}', "a: Infinity"),
        (b'{"a": 1e999}', "a: Infinity, or a number beyond 1.8e308, is not JSON"),
        (b'{"a": "\xff"}', "the line is not UTF-8"),
        ('{"a": "é"}'.encode("latin-1"), "the line is not UTF-8"),
        (b'{"a": "\\ud800"}', "a: the text holds half a character"),
        (b'{"a": "x\ny"}'.replace(b"\n", b"\x00"), "the line is not JSON: invalid control character"),
        (b"[1]", "the line is a list, not a JSON object"),
        (b'"x"', "the line is a text, not a JSON object"),
        (b"null", "the line is null, not a JSON object"),
        (b"[" * 5000 + b"]" * 5000, "the line is nested too deep"),
        (b'{"a":' * 300 + b"1" + b"}" * 300, "the line is nested too deep"),
    ],
    ids=lambda value: repr(value[:24]) if isinstance(value, bytes) else None,
)
def test_every_way_to_write_a_bad_line_has_its_message(raw, told):
    """Files come out of scripts, spreadsheets and editors; each breaks lines in its own way."""
    _, problems = read_line(raw)

    assert any(told in str(problem) for problem in problems), [str(problem) for problem in problems]


def test_a_line_with_several_faults_is_told_all_of_them():
    """Otherwise one repairs the file as many times as there are faults."""
    row, problems = read_line(b'\xef\xbb\xbf{"a": 1, "a": 2}\r')

    assert row == {"a": 2}
    assert len(problems) == 3


def test_the_first_column_and_byte_are_named():
    """A line of a megabyte is not searched by eye."""
    assert read_line(b'{"a": tru}')[1][0].detail == "first: at column 7"
    assert read_line(b'{"a": "\xff"}')[1][0].detail == "first: byte 0xff at column 8"


@settings(max_examples=60, deadline=None)
@given(ROWS, st.sampled_from([{}, {"ensure_ascii": False}, {"separators": (",", ":")}, {"indent": 1}]))
def test_a_good_line_has_no_problem_however_it_is_written(row, style):
    """Escapes, spaces and order are the writer's own business."""
    raw = json.dumps(row, **style).replace("\n", " ").encode("utf-8", "surrogatepass")
    try:
        raw.decode()
    except UnicodeDecodeError:
        return

    found, problems = read_line(raw)

    assert not problems
    assert found == row


@settings(max_examples=60, deadline=None)
@given(ROWS.filter(bool), JSON, st.booleans())
def test_a_key_given_twice_is_never_missed(row, other, escaped):
    """Which of the two a reader keeps is up to the reader."""
    key = next(iter(row))
    written = json.dumps(row).encode()
    again = json.dumps(key).replace("a", "\\u0061") if escaped else json.dumps(key)
    raw = b"{" + again.encode() + b": " + json.dumps(other).encode() + b", " + written[1:]

    _, problems = read_line(raw)

    assert problems


def test_whole_numbers_beyond_64_bits_stay_exact():
    """orjson would make floats of them, and an answer would change on its way to the trainer."""
    raw = b'{"answer": 123456789012345678901234567890}'

    assert exact_row(raw)["answer"] == 123456789012345678901234567890
    assert row_line(exact_row(raw)) == b'{"answer": 123456789012345678901234567890}\n'
    assert row_line({"answer": 5}) == b'{"answer":5}\n'
