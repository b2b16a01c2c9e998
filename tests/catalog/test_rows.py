"""Lines are parsed strictly, rows are checked as the servers check them, and every problem is explained."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from nemo_gym.catalog import rows as rows_module
from nemo_gym.catalog.rows import (
    RowChecker,
    check_file,
    count_separators,
    exact_row,
    parse_row,
    read_line,
    row_line,
    row_problems,
)
from nemo_gym.errors import ConfigError
from nemo_gym.wire.run_seed_verify import BaseRunRequest

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ANY_ROWS = st.dictionaries(st.text(max_size=5), JSON, max_size=4)


@pytest.mark.parametrize(
    ("raw", "text"),
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
        (b'{"a": 1, "a": 2}', "the key 'a' is given twice"),
        (b'{"a": "\\u0022", "b\\u0022": 1, "c": {"d": 1, "d": 1}}', "c: the key 'd' is given twice"),
        (b'{"a": [{"b": NaN}]}', "a[*].b: NaN is not JSON"),
        (b'{"a": -Infinity}', "a: Infinity"),
        (b'{"a": 1e999}', "a: Infinity, or a number beyond 1.8e308, is not JSON"),
        (b'{"a": "\xff"}', "the line is not UTF-8"),
        ('{"a": "é"}'.encode("latin-1"), "the line is not UTF-8"),
        (b'{"a": "\\ud800"}', "a: the text contains a lone surrogate"),
        (b'{"a": "x\ny"}'.replace(b"\n", b"\x00"), "the line is not JSON: invalid control character"),
        (b"[1]", "the line is a list, not a JSON object"),
        (b'"x"', "the line is a text, not a JSON object"),
        (b"null", "the line is null, not a JSON object"),
        (b"[" * 5000 + b"]" * 5000, "the line is nested too deep"),
        (b'{"a":' * 300 + b"1" + b"}" * 300, "the line is nested too deep"),
    ],
    ids=lambda value: repr(value[:24]) if isinstance(value, bytes) else None,
)
def test_every_way_to_write_a_bad_line_has_its_message(raw, text):
    """Scripts, spreadsheets and editors each break lines in another way, and the author must recognise which."""
    _, problems = read_line(raw)

    assert any(text in str(problem) for problem in problems), [str(problem) for problem in problems]


def test_a_line_with_several_faults_reports_all_of_them():
    """With one fault per run, a file has to be repaired again and again."""
    row, problems = read_line(b'\xef\xbb\xbf{"a": 1, "a": 2}\r')

    assert row == {"a": 2}
    assert len(problems) == 3


def test_the_first_column_and_byte_are_named():
    """Nothing can be found by eye in a line of a megabyte."""
    assert read_line(b'{"a": tru}')[1][0].detail == "first: at column 7"
    assert read_line(b'{"a": "\xff"}')[1][0].detail == "first: byte 0xff at column 8; save the file as UTF-8"


@settings(max_examples=60, deadline=None)
@given(ANY_ROWS, st.sampled_from([{}, {"ensure_ascii": False}, {"separators": (",", ":")}, {"indent": 1}]))
def test_a_good_line_has_no_problem_however_it_is_written(row, style):
    """JSON allows any escapes, spaces and order, so they must not be reported."""
    raw = json.dumps(row, **style).replace("\n", " ").encode("utf-8", "surrogatepass")
    try:
        raw.decode()
    except UnicodeDecodeError:
        return

    parsed, problems = read_line(raw)

    assert not problems
    assert parsed == row


@settings(max_examples=60, deadline=None)
@given(ANY_ROWS.filter(bool), JSON, st.booleans())
def test_a_key_given_twice_is_never_missed(row, other, escaped):
    """Readers disagree on which of the two values counts."""
    key = next(iter(row))
    written = json.dumps(row).encode()
    repeated = json.dumps(key).replace("a", "\\u0061") if escaped else json.dumps(key)
    raw = b"{" + repeated.encode() + b": " + json.dumps(other).encode() + b", " + written[1:]

    _, problems = read_line(raw)

    assert problems


def test_whole_numbers_beyond_64_bits_stay_exact():
    """orjson makes floats of them, so an answer would change on its way to the trainer."""
    raw = b'{"answer": 123456789012345678901234567890}'

    assert exact_row(raw)["answer"] == 123456789012345678901234567890
    assert row_line(exact_row(raw)) == b'{"answer": 123456789012345678901234567890}\n'
    assert row_line({"answer": 5}) == b'{"answer":5}\n'


TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
CHAT_TOOL = (
    "responses_create_params.tools[*].function: a Chat Completions tool — "
    "here name, description and parameters are next to type"
)
ODD = st.sampled_from([None, 1, "x", [], {}, ["x"], {"type": "message"}, True, 0.5])
TEXTS = st.text(max_size=3)
ITEMS = st.one_of(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "developer", "tool", 3]), "content": TEXTS | ODD},
        optional={"type": st.sampled_from(["message", "text"]), "id": TEXTS, "status": st.just("completed")},
    ),
    st.fixed_dictionaries(
        {"type": st.just("function_call"), "call_id": TEXTS, "name": TEXTS, "arguments": TEXTS | ODD},
        optional={"id": TEXTS | ODD, "role": st.just("user")},
    ),
    st.fixed_dictionaries({"type": st.just("function_call_output"), "call_id": TEXTS, "output": TEXTS | ODD}),
    st.fixed_dictionaries({"id": TEXTS, "summary": st.just([])}),
    ODD,
)
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "input": TEXTS | st.lists(ITEMS, max_size=3) | ODD,
        "temperature": st.floats(0, 2) | ODD,
        "top_p": st.just("0.5"),
        "max_output_tokens": st.integers(1, 9) | ODD,
        "tools": st.just([TOOL]) | st.just([{**TOOL, "name": 3}]) | ODD,
        "tool_choice": st.sampled_from(["auto", "sometimes"]),
        "metadata": st.dictionaries(TEXTS, TEXTS, max_size=1) | ODD,
        "unheard_of": ODD,
    },
)
ROWS = st.fixed_dictionaries({}, optional={"responses_create_params": PARAMS | ODD, "answer": ODD})


@settings(max_examples=60, deadline=None)
@given(st.lists(ROWS, max_size=6))
def test_the_fast_check_accepts_exactly_the_rows_the_servers_accept(rows):
    """A row that passes the check must not fail at the first request."""
    checker = RowChecker()

    for row in [*rows, *rows]:
        try:
            BaseRunRequest.model_validate(row)
        except ValidationError:
            assert checker.parse_request(row) is None
            assert row_problems(row)
        else:
            assert checker.parse_request(row) is not None
            assert not row_problems(row)


def test_values_are_those_the_wire_types_make_of_them():
    """A temperature written as text is measured as a number."""
    request = RowChecker().parse_request(
        {"responses_create_params": {"input": "x", "temperature": "0.5", "tools": [TOOL]}}
    )

    assert request is not None
    assert request.settings.values["temperature"] == 0.5
    assert request.settings.values["tools"] == [TOOL]


def test_more_settings_than_fit_the_cache_change_nothing(monkeypatch):
    """Files whose rows each have their own metadata are checked like any other."""
    monkeypatch.setattr(rows_module, "MAX_CACHED_SETTINGS", 3)
    checker = RowChecker()
    rows = [{"responses_create_params": {"input": "x", "metadata": {"n": str(n % 7)}}} for n in range(40)]

    assert all(checker.parse_request(row) is not None for row in rows)
    assert checker.parse_request({"responses_create_params": {"input": "x", "metadata": {"n": 1}}}) is None


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({}, "responses_create_params: field required"),
        ({"responses_create_params": []}, "responses_create_params: should be an object"),
        ({"responses_create_params": {}}, "responses_create_params.input: field required"),
        (
            {"responses_create_params": {"input": "x", "temprature": 1}},
            "responses_create_params.temprature: not a field of the Responses API — did you mean 'temperature'?",
        ),
        (
            {"responses_create_params": {"input": "x", "messages": []}},
            "responses_create_params.messages: not a field of the Responses API — its name there is 'input'",
        ),
        (
            {"responses_create_params": {"input": "x", "temperature": "hot"}},
            "responses_create_params.temperature: should be a valid number, unable to parse string as a number",
        ),
        (
            {"responses_create_params": {"input": [{"role": "user", "content": "a"}, {"role": "usr", "content": "a"}]}},
            "responses_create_params.input[*].role: should be 'user', 'assistant', 'system' or 'developer'",
        ),
        (
            {"responses_create_params": {"input": [{"role": "user"}]}},
            "responses_create_params.input[*].content: field required",
        ),
        ({"responses_create_params": {"input": [3]}}, "responses_create_params.input[*]: an item must be an object"),
        (
            {"responses_create_params": {"input": "x", "tools": [{"type": "function", "function": {"name": "f"}}]}},
            CHAT_TOOL,
        ),
        (
            {"responses_create_params": {"input": "x", "tools": [{**TOOL, "paramters": {}}]}},
            "responses_create_params.tools[*].paramters: unknown field",
        ),
        (
            {"responses_create_params": {"input": "x", "tools": [{"type": "function"}]}},
            "responses_create_params.tools[*].name: field required",
        ),
        ({"responses_create_params": {"input": "x", "tools": [{}]}}, "responses_create_params.tools[*]: has no type"),
    ],
)
def test_a_refused_row_names_the_field_and_the_reason(row, text):
    """Authors know the fields of their data, not the names of our classes."""
    assert text in [str(problem) for problem in row_problems(row)]


def test_an_unknown_kind_of_part_lists_the_known_ones():
    """The right name is usually in the list."""
    row = {"responses_create_params": {"input": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}}

    (problem,) = row_problems(row)

    assert str(problem).startswith(
        "responses_create_params.input[*].content[*]: unknown type 'text': expected one of 'input_"
    )


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.integers(0, 9) | st.just("a"),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        max_leaves=8,
    )
)
def test_separators_are_those_json_writes(value):
    """The number of words in the metrics depends on them."""
    text = json.dumps(value)

    assert count_separators(value) == text.count(", ") + text.count(": ")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"{", "the line is not JSON: expecting property name"),
        (b"[1]", "the line is a list, not a JSON object"),
        (b"\xff", "the line is not UTF-8"),
        (b'{"a": NaN}', "a: NaN is not JSON"),
    ],
)
def test_parsing_a_row_names_location_and_cause(line: bytes, text: str) -> None:
    """Every reader of datasets reports a bad line in the same words."""
    with pytest.raises(ConfigError, match=rf"^rows\.jsonl:7: {text}"):
        parse_row(line, "rows.jsonl:7")


def test_parsing_a_row_accepts_any_json_object() -> None:
    """A run reads files that collating would refuse: repeated keys and CRLF do not stop it."""
    assert parse_row(b'{"a": 1, "a": 2}\r\n', "here") == {"a": 2}


def test_a_file_is_checked_as_a_whole(tmp_path: Path) -> None:
    """Uploads and prepared benchmarks are refused with every bad line, not the first one."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"responses_create_params": {}}\n{"q": 1}\n\nnope\n{"q": 2}\n[]\n')

    count, problems = check_file(path, needs_params=True)

    assert (count, problems.rows) == (5, 4)
    assert list(problems.texts()) == [
        "lines 2, 5: responses_create_params: the field is missing",
        "line 4: the line is not JSON: expecting value (first: at column 1)",
        "line 6: the line is a list, not a JSON object",
    ]
    assert check_file(path, needs_params=False)[1].rows == 2
