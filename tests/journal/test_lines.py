"""Files of JSON lines that were cut, filled or damaged."""

import os
import resource
import signal
import subprocess
import sys
import textwrap
from contextlib import closing

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_gym.journal import LineWriter, StoreError, read_rows, repair, write_lines

ROWS = st.lists(
    st.dictionaries(st.text(max_size=4), st.one_of(st.text(max_size=20), st.integers(-9, 9), st.none()), max_size=3),
    max_size=6,
)


@given(ROWS, st.data())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_cut_anywhere_reopens_to_exactly_its_whole_lines(tmp_path, monkeypatch, rows, data):
    """A crash can end the file at any byte; nothing finished is lost and nothing torn is kept."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # a power cut is not what is played here
    path = tmp_path / "x.jsonl"
    lines = [orjson.dumps(row) for row in rows]
    whole = b"".join(line + b"\n" for line in lines)
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    # A line is whole when its last byte is there; only the line break may be missing.
    ends = [sum(len(line) + 1 for line in lines[: n + 1]) - 1 for n in range(len(lines))]
    expected = [row for row, end in zip(rows, ends, strict=True) if end <= cut]

    assert list(read_rows(path)) == expected

    with closing(LineWriter(path)) as writer:
        writer.append(b'{"new":1}\n')
    assert list(read_rows(path)) == [*expected, {"new": 1}]
    assert path.read_bytes().endswith(b"\n")


@given(st.binary(max_size=60))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_read_repaired_or_refused(tmp_path, content):
    """Never wrong data, never a traceback of the parser's."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)

    try:
        rows = list(read_rows(path))
    except StoreError as error:
        assert str(path) in str(error)
    else:
        assert all(isinstance(row, dict) for row in rows)
        assert repair(path) == path.stat().st_size
        assert list(read_rows(path)) == rows


def test_a_damaged_line_in_the_middle_is_refused_with_its_location(tmp_path):
    """Silently skipping it would lose a rollout."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":\n{"a":3}\n')

    with pytest.raises(StoreError, match=r"x\.jsonl:2: this line is damaged"):
        list(read_rows(path))


def test_a_torn_line_longer_than_a_block_is_cut(tmp_path):
    """Records may be longer than the block in which the file is read backwards."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a":1}\n' + b'{"a":"' + b"x" * 200_000)

    assert repair(path) == 8
    assert path.read_bytes() == b'{"a":1}\n'


def test_each_row_is_readable_as_soon_as_it_is_appended(tmp_path):
    """The viewer and a crash both see what is there now."""
    path = tmp_path / "deep" / "er" / "x.jsonl"

    with closing(LineWriter(path)) as writer:
        for n in range(3):
            writer.append(orjson.dumps({"n": n}) + b"\n")
            assert [row["n"] for row in read_rows(path)] == list(range(n + 1))


def test_a_full_disk_leaves_whole_lines(tmp_path):
    """What is half written is taken back: the next run must find whole lines only."""
    path = tmp_path / "x.jsonl"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with closing(LineWriter(path)) as writer:
            writer.append(b'{"a":1}\n')
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
            with pytest.raises(StoreError, match="cannot write") as caught:
                writer.append(b'{"a":"' + b"x" * 5000 + b'"}\n')
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, previous)

    assert isinstance(caught.value, OSError)
    assert path.read_bytes() == b'{"a":1}\n'


def test_a_file_is_written_completely_or_not_at_all(tmp_path):
    """A plan that fails at its last row must not replace the rows of an earlier run."""
    path = tmp_path / "x.jsonl"
    path.write_text("before\n")

    def lines():
        yield b'{"a":1}\n'
        raise ValueError("row 2 is bad")

    with pytest.raises(ValueError, match="row 2"):
        write_lines(path, lines())

    assert path.read_text() == "before\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.jsonl"]
    assert write_lines(path, iter([b'{"a":1}\n', b'{"a":2}\n'])) == 2
    assert list(read_rows(path)) == [{"a": 1}, {"a": 2}]


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    """The user must see which path to change."""
    blocked = tmp_path / "file"
    blocked.write_text("")

    with pytest.raises(StoreError, match="cannot write"):
        LineWriter(blocked / "x.jsonl")


def test_kill_minus_nine_loses_nothing_that_was_appended(tmp_path):
    """The writer tells us after each append; everything told must be in the file."""
    path = tmp_path / "x.jsonl"
    program = textwrap.dedent(
        """
        import json, sys
        from pathlib import Path
        from nemo_gym.journal import LineWriter
        writer = LineWriter(Path(sys.argv[1]))
        n = 0
        while True:
            writer.append(json.dumps({"n": n, "text": "x" * 50_000}).encode() + b"\\n")
            sys.stdout.write(f"{n}\\n")
            sys.stdout.flush()
            n += 1
        """
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, env=os.environ)
    assert child.stdout is not None
    while int(child.stdout.readline()) < 20:
        pass
    child.kill()
    reported = [int(line) for line in child.stdout.read().split()] or [20]
    child.stdout.close()
    child.wait()

    stored = [row["n"] for row in read_rows(path)]

    assert stored == list(range(len(stored)))
    assert len(stored) > reported[-1]
