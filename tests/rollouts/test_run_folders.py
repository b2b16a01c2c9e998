"""One folder per run, its labels, and how a stored run is found and deleted."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.lock import OutputInUse, RunLock
from nemo_gym.rollouts.run_files import RunFiles, lock_path_for
from nemo_gym.rollouts.run_folders import (
    RunLabels,
    RunNotFound,
    change_tags,
    check_name,
    create_run_folder,
    delete_run,
    discard_if_unused,
    find_stored_run,
    latest_run,
    link_latest,
    short_name,
    stored_runs,
)

NOW = datetime(2026, 11, 18, 14, 53, 12, tzinfo=UTC)
LABELS = RunLabels(environment="math", model="org/small: v1", tags=["a"])


def make_run(results: Path, started: str, labels: RunLabels = LABELS) -> Path:
    output = create_run_folder(results, labels, NOW)
    output.write_text('{"reward": 1.0}\n')
    RunFiles(output).identity.write_text(f'{{"started_at": "{started}"}}')
    labels.write(output)
    link_latest(output)
    return output


def test_two_runs_of_one_second_get_two_folders(tmp_path: Path) -> None:
    """No run may delete or replace another."""
    first, second = (create_run_folder(tmp_path, LABELS, NOW) for _ in range(2))

    assert first.parent.name == "20261118-145312-math-org_small_v1"
    assert second.parent.name == "20261118-145312-math-org_small_v1-2"


def test_runs_are_found_newest_first_and_once(tmp_path: Path) -> None:
    """The link `latest` shows a run a second time, which must not count."""
    first, second = make_run(tmp_path, "2026-01-01"), make_run(tmp_path, "2026-01-02")

    assert [run.output for run in stored_runs(tmp_path)] == [second, first]
    assert latest_run(tmp_path, LABELS) == RunFiles(second)
    assert latest_run(tmp_path, RunLabels(environment="math", model="other")) is None
    assert find_stored_run(tmp_path, "latest").output == second
    assert find_stored_run(tmp_path, first.parent.name).output == first
    assert stored_runs(tmp_path / "nowhere") == []


def test_a_name_identifies_one_run(tmp_path: Path) -> None:
    """`gym runs show baseline` must not choose among several."""
    first, second = make_run(tmp_path, "2026-01-01"), make_run(tmp_path, "2026-01-02")

    labels = change_tags(first, name="baseline", added=["b", "a"], removed=["c"])

    assert (labels.name, labels.tags) == ("baseline", ["a", "b"])
    assert find_stored_run(tmp_path, "baseline").output == first
    check_name(tmp_path, "baseline", own=first)
    with pytest.raises(ConfigError, match="has this name"):
        check_name(tmp_path, "baseline", own=second)
    with pytest.raises(RunNotFound, match="no run is called 'other'"):
        find_stored_run(tmp_path, "other")


def test_a_deleted_run_leaves_nothing_and_no_broken_link(tmp_path: Path) -> None:
    """But a file of the user in its folder stays."""
    first, second = make_run(tmp_path, "2026-01-01"), make_run(tmp_path, "2026-01-02")
    (first.parent / "notes.txt").write_text("mine")

    for output in (first, second):
        delete_run(RunFiles(output))

    assert [path.name for path in tmp_path.rglob("*")] == [first.parent.name, "notes.txt"]


def test_a_run_that_is_collected_is_not_deleted(tmp_path: Path) -> None:
    """Its collector would lose its files."""
    output = make_run(tmp_path, "2026-01-01")
    lock = RunLock(lock_path_for(output))
    lock.acquire()
    try:
        with pytest.raises(OutputInUse):
            delete_run(RunFiles(output))
    finally:
        lock.release()

    assert output.exists()


def test_a_folder_of_a_run_that_did_not_begin_is_removed(tmp_path: Path) -> None:
    """Mistakes on the command line must not fill the folder of results."""
    unused, used, of_driver = (create_run_folder(tmp_path, LABELS, NOW) for _ in range(3))
    LABELS.write(unused)
    RunFiles(used).identity.write_text("{}")
    of_driver.write_text('{"reward": 1.0}\n')  # a driver writes rollouts and no identity

    for output in (unused, used, of_driver):
        discard_if_unused(output)

    assert [output.parent.exists() for output in (unused, used, of_driver)] == [False, True, True]


def test_the_link_to_the_latest_run_follows_when_that_is_deleted(tmp_path: Path) -> None:
    """`gym view results/latest` must work as long as there is a run."""
    first, second = make_run(tmp_path, "2026-01-01"), make_run(tmp_path, "2026-01-02")

    delete_run(RunFiles(second))
    assert find_stored_run(tmp_path, "latest").output == first
    delete_run(RunFiles(first))
    assert list(tmp_path.iterdir()) == []


def test_a_run_with_its_own_output_is_listed_by_the_name_of_its_file(tmp_path: Path) -> None:
    """A list of twenty runs called `results` is of no use."""
    output = tmp_path / "small.jsonl"
    output.write_text('{"reward": 1.0}\n')
    RunFiles(output).identity.write_text('{"started_at": "2026-01-01"}')

    assert short_name(RunFiles(output)) == "small"
    assert find_stored_run(tmp_path, "small").output == output
    assert short_name(RunFiles(make_run(tmp_path, "2026-01-02"))) == "20261118-145312-math-org_small_v1"
