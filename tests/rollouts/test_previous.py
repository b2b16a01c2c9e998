"""What becomes of earlier results when a run starts over."""

import pytest

from nemo_gym.rollouts.jsonl import StoreError
from nemo_gym.rollouts.paths import previous_folder_for
from nemo_gym.rollouts.previous import check_ours, files_of, put_aside, remove


@pytest.fixture
def output(tmp_path):
    return tmp_path / "x.jsonl"


def leave(output, text):
    """Files of a run that says `text`."""
    for path in files_of(output):
        if path.suffix:
            path.write_text(text)
        else:
            path.mkdir(exist_ok=True)
            (path / "scored").write_text(text)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_all_files_of_a_run_are_kept_together_under_their_own_names(output):
    leave(output, "old")
    before = names(output.parent)

    folder = put_aside(output)

    assert folder == previous_folder_for(output)
    assert names(folder) == before
    assert names(output.parent) == ["x_previous"]


def test_one_generation_is_kept(output):
    for text in ("first", "second"):
        leave(output, text)
        put_aside(output)

    assert (previous_folder_for(output) / "x.jsonl").read_text() == "second"


def test_a_run_without_a_result_does_not_push_out_one_with_results(output):
    """A night's rollouts, then two failed starts in a row: the night is still there."""
    leave(output, "a night")
    put_aside(output)
    leave(output, "")

    assert put_aside(output) is None

    assert (previous_folder_for(output) / "x.jsonl").read_text() == "a night"
    assert names(output.parent) == ["x_previous"]


@pytest.mark.parametrize("moved", range(1, 8))
def test_a_move_that_was_interrupted_is_finished_by_the_next(output, moved):
    """A crash between two renames must not lose the files that were already moved."""
    leave(output, "old")
    before = names(output.parent)
    moving = output.parent / "x_previous.partial"
    moving.mkdir()
    for path in files_of(output)[:moved]:
        path.replace(moving / path.name)

    folder = put_aside(output)

    assert folder is not None
    assert names(folder) == before
    assert names(output.parent) == ["x_previous"]


def test_removing_keeps_nothing_and_touches_nobody_else(output):
    leave(output, "old")
    (output.parent / "x_notes.txt").write_text("mine")

    remove(output)

    assert names(output.parent) == ["x_notes.txt"]


def test_what_cannot_be_moved_is_said(output):
    output.write_text("old")
    (output.parent / "x_previous.partial").write_text("a file where a folder is wanted")

    with pytest.raises(StoreError, match="cannot move aside"):
        put_aside(output)

    assert output.read_text() == "old"


@pytest.mark.parametrize("folder", ["x.jsonl", "x_failures.jsonl", "x_index", "x_previous", "x_previous.partial"])
@pytest.mark.parametrize("act", [put_aside, remove, check_ours])
def test_a_folder_of_somebody_elses_is_never_touched(output, folder, act):
    """`-o results` where `results/` is the folder of all results must not be the end of them."""
    precious = output.parent / folder / "precious.txt"
    precious.parent.mkdir()
    precious.write_text("years")
    (output.parent / "x_run.json").write_text("{}")

    with pytest.raises(StoreError, match=r"folder.*(not a file|not of a run)"):
        act(output)

    assert precious.read_text() == "years"
    assert (output.parent / "x_run.json").exists()
