"""What becomes of earlier results when a run starts over."""

import pytest

from nemo_gym.journal import StoreError
from nemo_gym.rollouts.run_files import (
    check_no_foreign_files,
    files_of_run,
    move_aside,
    previous_folder_for,
    remove_run,
)


@pytest.fixture
def output(tmp_path):
    return tmp_path / "x.jsonl"


def leave(output, text):
    """Files of a run that says `text`."""
    for path in files_of_run(output):
        if path.suffix:
            path.write_text(text)
        else:
            path.mkdir(exist_ok=True)
            (path / "scored").write_text(text)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_all_files_of_a_run_are_kept_together_under_their_own_names(output):
    """A kept run can be resumed and profiled."""
    leave(output, "old")
    before = names(output.parent)

    folder = move_aside(output)

    assert folder == previous_folder_for(output)
    assert names(folder) == before
    assert names(output.parent) == ["x_previous"]


def test_one_generation_is_kept(output):
    """Disk space stays bounded."""
    for text in ("first", "second"):
        leave(output, text)
        move_aside(output)

    assert (previous_folder_for(output) / "x.jsonl").read_text() == "second"


def test_a_run_without_a_result_does_not_push_out_one_with_results(output):
    """A night's rollouts, then two failed starts in a row: the night is still there."""
    leave(output, "a night")
    move_aside(output)
    leave(output, "")

    assert move_aside(output) is None

    assert (previous_folder_for(output) / "x.jsonl").read_text() == "a night"
    assert names(output.parent) == ["x_previous"]


@pytest.mark.parametrize("moved", range(1, 8))
def test_a_move_that_was_interrupted_is_finished_by_the_next(output, moved):
    """A crash between two renames must not lose the files that were already moved."""
    leave(output, "old")
    before = names(output.parent)
    moving = output.parent / "x_previous.partial"
    moving.mkdir()
    for path in files_of_run(output)[:moved]:
        path.replace(moving / path.name)

    folder = move_aside(output)

    assert folder is not None
    assert names(folder) == before
    assert names(output.parent) == ["x_previous"]


def test_removing_touches_only_files_of_the_run(output):
    """The folder may hold other runs."""
    leave(output, "old")
    (output.parent / "x_notes.txt").write_text("mine")

    remove_run(output)

    assert names(output.parent) == ["x_notes.txt"]


def test_a_file_that_cannot_be_moved_is_an_error(output):
    """Results must not be overwritten silently."""
    output.write_text("old")
    (output.parent / "x_previous.partial").write_text("a file where a folder is wanted")

    with pytest.raises(StoreError, match="cannot move aside"):
        move_aside(output)

    assert output.read_text() == "old"


@pytest.mark.parametrize("folder", ["x.jsonl", "x_failures.jsonl", "x_index", "x_previous", "x_previous.partial"])
@pytest.mark.parametrize("act", [move_aside, remove_run, check_no_foreign_files])
def test_a_folder_of_somebody_elses_is_never_touched(output, folder, act):
    """`-o results` where `results/` is the folder of all results must not be the end of them."""
    precious = output.parent / folder / "precious.txt"
    precious.parent.mkdir()
    precious.write_text("years")
    (output.parent / "x_run.json").write_text("{}")

    with pytest.raises(StoreError, match=r"folder.*(not a file|not part of a run)"):
        act(output)

    assert precious.read_text() == "years"
    assert (output.parent / "x_run.json").exists()
