"""The index follows the files: what grows is taken in, what changes is read anew, and nothing is counted twice."""

import functools
import json
import operator
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.rollouts.run_files import NothingToView, RunFiles, find_runs
from nemo_gym.view import index as index_module
from nemo_gym.view.database import RunDatabase, Selection
from tests.view.records import append, failure, record, write

Make = Callable[..., RunDatabase]


def rollout_ids(index: RunDatabase, **query: object) -> list[tuple[int, int]]:
    return [(row["task"], row["rollout"]) for row in index.page(**query).rows]  # type: ignore[arg-type]


def test_a_row_has_what_people_look_for(index: RunDatabase) -> None:
    """Question, answer, what was expected and what was extracted stand side by side."""
    row = index.page(filter_text="task == 0 and repeat == 1").rows[0]

    assert (row["question"], row["answer"], row["expected"], row["extracted"]) == (
        "What is 0 + 1?",
        "It is 4.",
        "1",
        "1",
    )
    assert (row["turns"], row["tool_calls"], row["tokens_in"], row["tokens_out"]) == (2, 1, 10, 5)
    assert (row["outcome"], row["reward"], row["agent"]) == ("scored", 1.0, "the_agent")


def test_a_run_that_goes_on_is_followed(index: RunDatabase) -> None:
    """Users open the viewer while a run collects."""
    append(index.run.output, record(3, 0))

    index.build()

    assert rollout_ids(index, filter_text="task == 3") == [(3, 0)]
    assert index.page().total == 7


def test_half_a_line_waits_for_its_other_half(index: RunDatabase) -> None:
    """The writer may be in the middle of it."""
    line = json.dumps(record(3, 0)) + "\n"
    with index.run.output.open("a") as file:
        file.write(line[:40])
        file.flush()
        index.build()
        assert index.page().total == 6
        file.write(line[40:])
    index.build()

    assert index.page().total == 7


def test_a_failure_that_was_mended_is_no_longer_one(index: RunDatabase) -> None:
    """After resume the rollout is scored; its failed attempt can still be looked at."""
    append(index.run.output, record(2, 1))

    index.build()

    assert rollout_ids(index, filter_text='outcome == "failed"') == []
    assert index.page().total == 6
    assert len(index.locations((2, 1))) == 2
    assert (index.record((2, 1)) or {})["reward"] == 1.0
    assert (index.record((2, 1), attempt=1) or {})["_ng_failure_class"] == "timeout"


def test_of_several_failures_the_newest_counts(index_of: Make) -> None:
    """Only the last attempt is the outcome."""
    index = index_of(failures=(failure(0, 0, "timeout"), failure(0, 0, "model_refused")))

    assert [row["kind"] for row in index.page().rows] == ["model_refused"]


def test_files_that_were_replaced_are_read_anew(index: RunDatabase, tmp_path: Path) -> None:
    """A new run under the same name must not show rollouts of the old one."""
    write(index.run.output, record(7, 0))
    index.run.failures.unlink()

    again = RunDatabase(index.run, index.path)
    again.build()

    assert rollout_ids(again) == [(7, 0)]


def test_a_file_that_shrinks_while_it_is_watched_is_read_anew(index: RunDatabase) -> None:
    """A run may start over while the page is open."""
    index.run.failures.unlink()
    write(index.run.output, record(8, 0))

    index.build()

    assert rollout_ids(index) == [(8, 0)]


def test_opening_again_reads_nothing_twice(index: RunDatabase) -> None:
    """A large run must open at once the second time."""
    again = RunDatabase(index.run, index.path)

    assert not again.grow()
    assert again.page().total == 6


def test_an_index_that_is_broken_is_made_again(index: RunDatabase) -> None:
    """It is a cache; users must never have to repair it."""
    index.path.write_bytes(b"not a database at all" * 100)

    again = RunDatabase(index.run, index.path)
    again.build()

    assert again.page().total == 6


def test_a_reward_of_nan_is_shown_as_a_failure(tmp_path: Path) -> None:
    """Python writes NaN, which is not JSON; the rest of such a record is still worth reading."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"_ng_task_index": 4, "_ng_rollout_index": 0, "reward": NaN}\n')
    run = RunDatabase(RunFiles(path), tmp_path / "x.sqlite")
    run.build()

    (row,) = run.page().rows

    assert (row["task"], row["outcome"], row["kind"]) == (4, "failed", "invalid_reward")


def test_a_line_that_is_no_rollout_is_shown_as_such(index_of: Make) -> None:
    """A damaged file must still open."""
    index = index_of(record(0, 0), [1, 2], "text")
    with index.run.output.open("a") as file:
        file.write("{not json\n")
    index.build()

    kinds = [row["kind"] for row in index.page().rows]
    assert kinds.count("unreadable line") == 3
    assert index.page(filter_text='outcome == "scored"').total == 1


def test_rollouts_of_other_tools_are_numbered_by_line(index_of: Make) -> None:
    """Any JSONL with a reward can be looked at."""
    index = index_of({"reward": 0.5, "response": {"output": []}}, {"reward": 1})

    assert rollout_ids(index) == [(0, 0), (1, 0)]
    assert [row["reward"] for row in index.page().rows] == [0.5, 1.0]


@pytest.mark.parametrize("sort", ["task", "reward", "tokens", "answer", "nonsense"])
@pytest.mark.parametrize("down", [False, True])
def test_every_column_sorts_both_ways(index: RunDatabase, sort: str, down: bool) -> None:
    """Both ends of a column are interesting."""
    rows = index.page(sort=sort, down=down).rows

    assert len(rows) == 6
    if sort == "task":
        assert [row["task"] for row in rows] == sorted((row["task"] for row in rows), reverse=down)


def test_pages_are_disjoint_and_complete(index: RunDatabase) -> None:
    """No rollout may be missed while scrolling."""
    pages = [rollout_ids(index, start=start, count=2) for start in (0, 2, 4, 6)]

    assert functools.reduce(operator.iadd, pages, []) == rollout_ids(index)
    assert pages[-1] == []


def test_neighbours_keep_to_the_filter(index: RunDatabase) -> None:
    """Next means the next of those I am looking at."""
    assert index.neighbours((1, 0)) == {"previous": (0, 1), "next": (1, 1)}
    assert index.neighbours((0, 0), filter_text="reward == 1") == {"previous": None, "next": (0, 1)}
    assert index.neighbours((0, 1), filter_text="reward == 1")["next"] == (2, 0)


def test_repeats_of_a_task_stand_side_by_side(index: RunDatabase) -> None:
    """Comparing repeats shows the variance of a task."""
    rows = index.tasks()

    assert rows.total == 3
    assert [row["mean"] for row in rows.rows] == [1.0, 0.0, 1.0]
    assert [repeat["outcome"] for repeat in rows.rows[2]["rollouts"]] == ["scored", "failed"]


def test_a_folder_gives_its_runs_and_a_wrong_path_is_an_error(index: RunDatabase, tmp_path: Path) -> None:
    """Users pass the results folder."""
    index.run.output.with_name(f"{index.run.output.stem}_reward_profiling.jsonl").write_text("{}\n")
    (index.run.output.parent / "preprocessed_datasets").mkdir()
    (index.run.output.parent / "preprocessed_datasets" / "train.jsonl").write_text("{}\n")
    assert find_runs([index.run.output.parent]) == [index.run]
    assert find_runs([index.run.failures]) == [index.run]
    assert find_runs([index.run.output, index.run.output]) == [index.run]
    with pytest.raises(NothingToView, match="file or folder not found"):
        find_runs([tmp_path / "nowhere.jsonl"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(NothingToView, match="contains no rollouts"):
        find_runs([tmp_path / "empty"])


def test_the_index_is_kept_out_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at a run changes nothing in its folder, which may be read-only or owned by another user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    output = write(tmp_path / "run" / "rollouts.jsonl", record())

    RunDatabase(RunFiles(output)).build()

    assert [path.name for path in output.parent.iterdir()] == ["rollouts.jsonl"]
    assert list((tmp_path / "cache").rglob("*.sqlite"))


def test_half_a_character_and_a_huge_number_can_be_viewed(index_of: Make, tmp_path: Path) -> None:
    """Other tools write both as JSON; one such line must not hide the run."""
    index_of(record(0, 0))
    output = tmp_path / "odd" / "rollouts.jsonl"
    output.parent.mkdir()
    odd = [{**record(0, 0), "extracted_answer": "\ud83d"}, {**record(1, 0), "extracted_answer": 10**400}]
    output.write_text("".join(json.dumps(line) + "\n" for line in odd))
    index = RunDatabase(RunFiles(output), tmp_path / "odd.sqlite")

    index.build()

    assert rollout_ids(index) == [(0, 0), (1, 0)]
    assert index.page(filter_text="task == 0").rows[0]["extracted"] == "\ufffd"


def test_rows_can_be_read_on_any_thread(index_of: Make) -> None:
    """The server sends a CSV file in parts, each from the thread that is free."""
    index = index_of(*(record(task) for task in range(600)))
    rows = index.every_row(Selection())
    first = [next(rows) for _ in range(500)]

    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(list, rows).result()

    assert [row["task"] for row in [*first, *rest]] == list(range(600))


def test_two_viewers_of_a_run_add_each_line_once(
    index: RunDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share the index; while one reads new lines, the other one waits for it."""
    append(index.run.output, record(7))
    other = RunDatabase(index.run, index.path)
    growth: list[threading.Thread] = []
    scan = index_module.scan_lines

    def scan_while_another_grows(path: Path, start: int) -> Any:
        if not growth:
            growth.append(threading.Thread(target=other.grow))
            growth[0].start()
            growth[0].join(0.5)  # without a lock it ends within this time
        yield from scan(path, start)

    monkeypatch.setattr(index_module, "scan_lines", scan_while_another_grows)
    index.build()
    growth[0].join()

    assert [row["task"] for row in index.page(filter_text="task == 7").rows] == [7]
