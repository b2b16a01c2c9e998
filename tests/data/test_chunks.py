"""Chunks hold every line of a file, and preparing them stamps rows with their agent and changes nothing else."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.data.chunks import ChunkPreparer, ChunkSpec, PreparedChunk, line_span

ROW = {"responses_create_params": {"input": "hi"}}
ADVICE = "remove the prompt config, or use rows without an input"
LINE = json.dumps({**ROW, "question": "é", "tags": ["a", 1.5]}).encode()
REF = {"type": "responses_api_agents", "name": "sums_agent"}
LINES = st.lists(st.binary(max_size=12).map(lambda text: text.replace(b"\n", b"")), max_size=12)


@settings(max_examples=100, deadline=None)
@given(LINES, st.booleans(), st.integers(1, 30))
def test_chunks_of_any_size_hold_every_line_once(tmp_path_factory, lines, ended, size):
    """A lost or repeated line would change the dataset without any error."""
    path = tmp_path_factory.mktemp("chunks") / "rows.jsonl"
    content = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    path.write_bytes(content)

    lines_read = [line for chunk in line_span(path).chunks(size) for line in chunk.lines()]

    assert lines_read == (content.removesuffix(b"\n").split(b"\n") if content else [])


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 12), st.none() | st.integers(0, 14), st.none() | st.integers(0, 14), st.integers(1, 9))
def test_a_slice_is_the_slice_of_the_list_of_lines(tmp_path_factory, count, first, end, size):
    """Users expect start_idx and end_idx to work like a Python slice."""
    path = tmp_path_factory.mktemp("chunks") / "rows.jsonl"
    lines = [str(number).encode() for number in range(count)]
    path.write_bytes(b"".join(line + b"\n" for line in lines))

    span = line_span(path, first, end)

    assert [line for chunk in span.chunks(size) for line in chunk.lines()] == lines[first:end]
    assert span.lines_before == min(first or 0, count)


def prepare(path: Path, content: bytes, **task) -> PreparedChunk:
    path.write_bytes(content)
    (chunk,) = line_span(path).chunks(1 << 20)
    return ChunkPreparer().prepare(ChunkSpec(chunk, "sums_agent", **task))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows.jsonl"


def test_the_agent_is_stamped_and_the_rest_stays_as_written(path):
    """Parsing and writing would change numbers, spaces and escapes of the author."""
    line = rb'{"responses_create_params": {"input": "\u00e9"},  "id": 123456789012345678901234567890, "x": 1.0e-2 }'

    result = prepare(path, line + b"\n")

    assert result.written == line[:-1] + b', "agent_ref": ' + json.dumps(REF).encode() + b"}\n"
    assert json.loads(result.written)["agent_ref"] == REF


def test_a_row_stamped_before_is_left_alone(path):
    """Collating collated rows must not change them."""
    once = prepare(path, json.dumps(ROW).encode()).written

    assert prepare(path, once).written == once


def test_a_row_of_another_agent_is_stamped_anew_and_counted(path):
    """The configuration decides on the agent, and the user learns that the rows named another one."""
    line = json.dumps({**ROW, "agent_ref": {**REF, "name": "other"}, "big": 2**70}).encode()

    result = prepare(path, line)

    assert json.loads(result.written) == {**ROW, "agent_ref": REF, "big": 2**70}
    assert result.other_agents == {"other": 1}


@settings(max_examples=50, deadline=None)
@given(st.text(min_size=1))
def test_any_name_of_an_agent_is_written_as_json(tmp_path_factory, name):
    """Names are YAML keys and may contain quotes."""
    path = tmp_path_factory.mktemp("stamp") / "rows.jsonl"
    path.write_bytes(json.dumps(ROW).encode())
    (chunk,) = line_span(path).chunks(100)
    try:
        name.encode()
    except UnicodeEncodeError:
        return

    result = ChunkPreparer().prepare(ChunkSpec(chunk, name))

    assert json.loads(result.written)["agent_ref"]["name"] == name


@pytest.mark.parametrize("own", [{}, {"task_source": "sums"}, {"task_source": "other"}, {"agent_ref": {"name": "b"}}])
def test_rows_of_a_resources_server_name_it(path, own):
    """Newer collectors choose the agent by the instance that declares the dataset, not by `agent_ref`."""
    result = prepare(path, json.dumps({**ROW, **own}).encode(), task_source="sums")

    row = json.loads(result.written)
    assert (row["task_source"], row["agent_ref"]["name"]) == ("sums", "sums_agent")
    assert result.other_agents.total() == ("agent_ref" in own)


def test_repeats_stand_next_to_each_other(path):
    """The rollouts of a task are collected as a group, in the order of the rows."""
    content = b"".join(json.dumps({**ROW, "id": number}).encode() + b"\n" for number in range(2))

    result = prepare(path, content, repeats=2)

    assert [json.loads(line)["id"] for line in result.written.splitlines()] == [0, 0, 1, 1]
    assert result.metrics.examples == 4
    assert result.lines == 2


def test_one_bad_row_keeps_the_chunk_from_being_written(path):
    """A trainer cannot recognise half a dataset."""
    result = prepare(path, json.dumps(ROW).encode() + b"\n{}\n")

    assert result.written == b""
    assert str(result.problems) == "line 2: responses_create_params: field required"


def test_reading_stops_after_enough_problems(path):
    """A few bad rows are enough to recognise the wrong file."""
    result = prepare(path, b"{}\n" * 50, max_errors=3)

    assert result.problems.rows == 3
    assert result.lines == 3


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
def test_no_line_crashes_the_preparation(tmp_path_factory, lines, with_prompt):
    """Each line is written or reported; written lines can be parsed again."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "prompt.yaml").write_text("user: 'Q: {question}'\n")

    for line in lines:
        result = prepare(folder / "rows.jsonl", line + b"\n", prompt=folder / "prompt.yaml" if with_prompt else None)

        assert bool(result.problems) != bool(result.written)
        for written in result.written.splitlines():
            assert json.loads(written)["agent_ref"] == REF


class TestPrompts:
    """Benchmarks have raw rows and a prompt."""

    @pytest.fixture
    def prompt(self, tmp_path):
        file = tmp_path / "prompt.yaml"
        file.write_text("user: 'Q: {question}'\n")
        return file

    def test_the_prompt_is_filled_in_before_the_row_is_checked(self, path, prompt):
        """Raw rows have no input yet, and their other fields must survive."""
        line = json.dumps({"question": "1+1?", "big": 2**70, "responses_create_params": {"temperature": 0.5}}).encode()

        result = prepare(path, line, prompt=prompt)

        (row,) = map(json.loads, result.written.splitlines())
        assert row["responses_create_params"] == {
            "temperature": 0.5,
            "input": [{"role": "user", "content": "Q: 1+1?"}],
        }
        assert row["big"] == 2**70
        assert row["agent_ref"] == REF

    def test_rows_that_do_not_fit_report_the_field_and_the_existing_ones(self, path, prompt):
        """One line per problem stays readable for a thousand rows."""
        content = b'{"q": 1}\n{"q": 2}\n' + json.dumps({**ROW, "question": "x"}).encode()

        result = prepare(path, content, prompt=prompt)

        assert str(result.problems).splitlines() == [
            "lines 1–2: the row lacks the field 'question' of the template (it has: q)",
            f"line 3: responses_create_params.input: the row already has an input ({ADVICE})",
        ]


def test_rows_can_be_checked_without_being_measured(path):
    """Counting tokens takes half of the time, which `gym eval run` does not need to spend."""
    path.write_bytes(json.dumps(ROW).encode())
    (chunk,) = line_span(path).chunks(100)

    result = ChunkPreparer(measure=False).prepare(ChunkSpec(chunk, "a"))

    assert result.written
    assert result.metrics.examples == 0
