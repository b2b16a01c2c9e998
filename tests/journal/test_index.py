"""The index of a file of lines: right whatever happened to it."""

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_gym.journal import IndexWriter, LineIndex, StoreError, index_entry, scan_entries, select_rows
from nemo_gym.wire.stored_rollout import RolloutKey


def record(task, rollout=0, **fields):
    return {"_ng_task_index": task, "_ng_rollout_index": rollout, **fields}


def write(path, *records):
    with path.open("ab") as file:
        file.writelines(orjson.dumps(one) + b"\n" for one in records)


def tasks(index):
    return [entry.task for entry in index.entries()]


@pytest.fixture
def index(tmp_path):
    made = LineIndex(tmp_path / "index" / "lines", tmp_path / "x.jsonl")
    write(made.lines, *(record(task, text="x" * task) for task in range(300)))
    assert tasks(made) == list(range(300))
    return made


def test_an_entry_holds_the_facts_that_resume_needs(tmp_path):
    """Resume must not read the rows of a million rollouts."""
    write(tmp_path / "x", record(1, 2, _ng_failure_terminal=True, response={"usage": {"total_tokens": 7}}))

    (entry,) = scan_entries(tmp_path / "x")

    assert (entry.task, entry.rollout, entry.is_terminal, entry.tokens) == (1, 2, True, 7)
    assert entry.end == (tmp_path / "x").stat().st_size


def test_an_index_made_once_is_used_again(index):
    """What is in the index is not read from the lines: one that is damaged in between goes unnoticed."""
    content = index.lines.read_bytes()
    index.lines.write_bytes(content.replace(b'"_ng_task_index":7,', b'"_ng_task_index":?,'))

    assert tasks(index) == list(range(300))


def test_lines_that_came_later_are_added(index):
    """A run that was killed has lines that its index lacks."""
    write(index.lines, record(900), record(901))

    assert tasks(index)[-3:] == [299, 900, 901]
    assert tasks(LineIndex(index.path, index.lines))[-1] == 901


def test_the_index_of_another_file_is_not_believed(index):
    """Another output of the same size may have been put in its place."""
    content = index.lines.read_bytes()
    index.lines.write_bytes(content.replace(b'{"_ng_task_index":0,', b'{"_ng_task_index":8,', 1))

    assert tasks(index)[:2] == [8, 1]


@given(where=st.integers(0, 11_000), cut=st.integers(0, 11_000), length=st.none() | st.integers(0, 60_000))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_bit_a_torn_end_and_a_cut_file_change_nothing(tmp_path, where, cut, length):
    """The index only saves time: with any damage to it, the answer is that of the lines."""
    lines, path = tmp_path / "x.jsonl", tmp_path / "lines"
    if not lines.exists():
        write(lines, *(record(task, text="x" * task) for task in range(300)))
        whole = lines.read_bytes()
        (tmp_path / "whole").write_bytes(whole)
        list(LineIndex(tmp_path / "good", lines).entries())
    whole = (tmp_path / "whole").read_bytes()
    lines.write_bytes(whole[: whole.rfind(b"\n", 0, length) + 1] if length is not None else whole)
    damaged = bytearray((tmp_path / "good").read_bytes())
    damaged[where % len(damaged)] ^= 1 << (where % 8)
    path.write_bytes(damaged[: cut if cut % 2 else None])

    expected = list(scan_entries(lines))

    assert list(LineIndex(path, lines).entries()) == expected
    assert list(LineIndex(path, lines).entries()) == expected, "and it is mended now"


def test_an_index_that_cannot_be_written_costs_nothing_but_time(tmp_path):
    """A full disk is noticed where results are written; the index is not a result."""
    (tmp_path / "file").write_text("")
    index = LineIndex(tmp_path / "file" / "index", tmp_path / "x.jsonl")
    write(index.lines, record(1))

    assert tasks(index) == [1]
    writer = IndexWriter(tmp_path / "file" / "index")
    writer.add(index_entry(RolloutKey(0, 0), {}, 1))
    writer.flush()


def test_only_selected_rows_are_read(index):
    """Resuming the last few of a million rows must be quick."""
    rows = list(select_rows(index.lines, index.entries(), lambda entry: entry.task in (3, 4, 250)))

    assert [(row["_ng_task_index"], len(row["text"])) for row in rows] == [(3, 3), (4, 4), (250, 250)]


def test_a_key_that_does_not_fit_is_refused(tmp_path):
    """A truncated key would be another rollout's."""
    write(tmp_path / "x", record(2**63))

    with pytest.raises(StoreError, match="at most"):
        list(scan_entries(tmp_path / "x"))
