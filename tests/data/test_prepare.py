"""A chunk becomes rows with their agent on them, and nothing else about them changes."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.data.chunks import span_of
from nemo_gym.data.prepare import Prepared, Preparer, Task

ROW = {"responses_create_params": {"input": "hi"}}
ADVICE = "leave the prompt config out, or use rows without an input"
LINE = json.dumps({**ROW, "question": "é", "tags": ["a", 1.5]}).encode()
REF = {"type": "responses_api_agents", "name": "sums_agent"}


def prepared(path: Path, content: bytes, **task) -> Prepared:
    path.write_bytes(content)
    (chunk,) = span_of(path).chunks(1 << 20)
    return Preparer().prepare(Task(chunk, "sums_agent", **task))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows.jsonl"


def test_the_agent_is_stamped_and_the_rest_stays_as_written(path):
    """Numbers that no parser keeps, spaces, escapes: they are the author's."""
    line = rb'{"responses_create_params": {"input": "\u00e9"},  "id": 123456789012345678901234567890, "x": 1.0e-2 }'

    found = prepared(path, line + b"\n")

    assert found.written == line[:-1] + b', "agent_ref": ' + json.dumps(REF).encode() + b"}\n"
    assert json.loads(found.written)["agent_ref"] == REF


def test_a_row_stamped_before_is_left_alone(path):
    """Collating twice is collating once."""
    once = prepared(path, json.dumps(ROW).encode()).written

    assert prepared(path, once).written == once


def test_a_row_of_another_agent_changes_hands_and_is_counted(path):
    """The configuration says whose rows these are; that they were somebody else's is told."""
    line = json.dumps({**ROW, "agent_ref": {**REF, "name": "other"}, "big": 2**70}).encode()

    found = prepared(path, line)

    assert json.loads(found.written) == {**ROW, "agent_ref": REF, "big": 2**70}
    assert found.other_agents == {"other": 1}


@settings(max_examples=50, deadline=None)
@given(st.text(min_size=1))
def test_any_name_of_an_agent_is_written_as_json(tmp_path_factory, name):
    """Names come from YAML keys and may hold quotes."""
    path = tmp_path_factory.mktemp("stamp") / "rows.jsonl"
    path.write_bytes(json.dumps(ROW).encode())
    (chunk,) = span_of(path).chunks(100)
    try:
        name.encode()
    except UnicodeEncodeError:
        return

    found = Preparer().prepare(Task(chunk, name))

    assert json.loads(found.written)["agent_ref"]["name"] == name


def test_repeats_stand_next_to_each_other(path):
    """The rollouts of a task are collected as a group."""
    content = b"".join(json.dumps({**ROW, "id": number}).encode() + b"\n" for number in range(2))

    found = prepared(path, content, repeats=2)

    assert [json.loads(line)["id"] for line in found.written.splitlines()] == [0, 0, 1, 1]
    assert found.metrics.examples == 4
    assert found.lines == 2


def test_one_bad_row_keeps_the_chunk_from_being_written(path):
    """Half a dataset is worse than none."""
    found = prepared(path, json.dumps(ROW).encode() + b"\n{}\n")

    assert found.written == b""
    assert str(found.problems) == "line 2: responses_create_params: field required"


def test_reading_stops_after_enough_problems(path):
    """A wrong file is recognised after a few rows."""
    found = prepared(path, b"{}\n" * 50, most_problems=3)

    assert found.problems.rows == 3
    assert found.lines == 3


ODD_LINES = st.one_of(
    st.binary(max_size=40).map(lambda raw: raw.replace(b"\n", b"")),
    st.tuples(st.binary(max_size=3), st.integers(0, 80), st.integers(0, 3)).map(
        lambda change: LINE[: change[1]] + change[0].replace(b"\n", b"") + LINE[change[1] + change[2] :]
    ),
    st.sampled_from(
        [
            b'{"responses_create_params": [1], "question": 1}',
            b'{"responses_create_params": "x", "question": 1}',
            b'{"responses_create_params": null, "question": 1}',
            b'{"responses_create_params": {"input": "x", "max_output_tokens": %d}, "question": 1}' % 10**30,
            b'{"responses_create_params": {"input": [{"role": "user", "content": "x", "n": %d}]}}' % 10**30,
            b'{"responses_create_params": {"tools": [{"type": "function", "name": "f", "parameters": {"maximum": '
            + b"9" * 30
            + b'}}]}, "question": 1}',
            b'{"question": ' + b"9" * 5000 + b"}",
            b'{"question": ' + b"9" * 400 + b"}",
            b'{"responses_create_params": {"input": "x"}, "agent_ref": 3}',
            b'{"responses_create_params": {"input": "x"}, "agent_ref": null}',
            b"\xef\xbb\xbf" + b'{"question": 1}',
            b'{"responses_create_params": {"input": []}, "": {"a": [[], {}]}}',
        ]
    ),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(ODD_LINES, min_size=1, max_size=4), st.booleans())
def test_no_line_whatever_ends_the_work(tmp_path_factory, lines, with_prompt):
    """Each is written, or told; and what is written can be read again."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "prompt.yaml").write_text("user: 'Q: {question}'\n")

    for line in lines:
        found = prepared(folder / "rows.jsonl", line + b"\n", prompt=folder / "prompt.yaml" if with_prompt else None)

        assert bool(found.problems) != bool(found.written)
        for written in found.written.splitlines():
            assert json.loads(written)["agent_ref"] == REF


class TestPrompts:
    """Benchmarks keep raw rows and a prompt."""

    @pytest.fixture
    def prompt(self, tmp_path):
        file = tmp_path / "prompt.yaml"
        file.write_text("user: 'Q: {question}'\n")
        return file

    def test_the_prompt_is_filled_in_before_the_row_is_checked(self, path, prompt):
        """Such rows have no input of their own; everything else they bring stays."""
        line = json.dumps({"question": "1+1?", "big": 2**70, "responses_create_params": {"temperature": 0.5}}).encode()

        found = prepared(path, line, prompt=prompt)

        (row,) = map(json.loads, found.written.splitlines())
        assert row["responses_create_params"] == {
            "temperature": 0.5,
            "input": [{"role": "user", "content": "Q: 1+1?"}],
        }
        assert row["big"] == 2**70
        assert row["agent_ref"] == REF

    def test_rows_that_do_not_fit_are_told_the_field_and_what_exists(self, path, prompt):
        """In one line for all of them."""
        content = b'{"q": 1}\n{"q": 2}\n' + json.dumps({**ROW, "question": "x"}).encode()

        found = prepared(path, content, prompt=prompt)

        assert str(found.problems).splitlines() == [
            "lines 1–2: the template asks for 'question' (the row has: q)",
            f"line 3: responses_create_params.input: the row already has an input ({ADVICE})",
        ]


def test_rows_can_be_checked_without_being_measured(path):
    """Counting tokens takes half of the time."""
    path.write_bytes(json.dumps(ROW).encode())
    (chunk,) = span_of(path).chunks(100)

    found = Preparer(measure=False).prepare(Task(chunk, "a"))

    assert found.written
    assert found.metrics.examples == 0
