"""Other programs may delete, replace or cut the files of a run: no result is lost without an error."""

import os
import shutil
from contextlib import closing

import pytest

from nemo_gym.journal import StoreError, read_rows
from nemo_gym.rollouts.outcome import ScoredRollout
from nemo_gym.rollouts.output_guard import GuardedWriter
from nemo_gym.rollouts.store import RolloutStore
from tests.rollouts.test_store import failed_rollout, job


def line(number):
    return b'{"n": %d}\n' % number


def numbers(path):
    return [row["n"] for row in read_rows(path)]


def scored_rollout(task):
    return ScoredRollout(job(task), {"reward": 1.0})


def unlink(path):
    path.unlink()


def move(path):
    path.rename(path.with_name("elsewhere"))


def remove_folder(path):
    shutil.rmtree(path.parent)


def replace(path):
    other = path.with_name("other")
    other.write_bytes(line(99))
    other.replace(path)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results" / "x.jsonl"


@pytest.mark.parametrize("disturb", [unlink, move, remove_folder])
@pytest.mark.parametrize("count_after", [0, 2])
def test_a_file_that_disappears_is_written_again(path, disturb, count_after, caplog):
    """`rm` in the wrong folder during a long run must not cost its results."""
    with closing(GuardedWriter(path)) as writer:
        for number in range(3):
            writer.append(line(number))
        disturb(path)
        writer.sync()
        for number in range(3, 3 + count_after):
            writer.append(line(number))

    assert numbers(path) == list(range(3 + count_after))
    assert f"{path} was deleted during the run" in caplog.text
    assert sorted(file.name for file in path.parent.iterdir() if file.name != "elsewhere") == ["x.jsonl"]


def test_a_file_can_disappear_repeatedly(path):
    """Offsets in the index stay valid, and every deleted file is read before it is gone."""
    with closing(GuardedWriter(path)) as writer:
        for number in range(5):
            end = writer.append(line(number))
            path.unlink()

    assert numbers(path) == [0, 1, 2, 3, 4]
    assert end == path.stat().st_size


def test_a_file_that_was_replaced_is_left_alone_and_the_results_are_saved(path):
    """It may be the output of another run, so neither file may be overwritten."""
    (path.parent).mkdir()
    (path.parent / "x_recovered.jsonl").write_bytes(b"earlier")
    writer = GuardedWriter(path)
    writer.append(line(1))
    replace(path)

    with pytest.raises(StoreError, match=r"replaced this file .* saved in .*x_recovered2\.jsonl"):
        writer.append(line(2))
    with pytest.raises(StoreError, match="replaced this file"):
        writer.append(line(3))
    writer.close()

    assert numbers(path) == [99]
    assert numbers(path.with_name("x_recovered2.jsonl")) == [1, 2]
    assert path.with_name("x_recovered.jsonl").read_bytes() == b"earlier"


@pytest.mark.parametrize("disturb", [replace, lambda path: os.truncate(path, 0)])
def test_a_loss_after_the_last_result_is_noticed_at_the_end(path, disturb):
    """Otherwise a run would end with status 0 and without its results."""
    writer = GuardedWriter(path)
    writer.append(line(1))
    disturb(path)

    with pytest.raises(StoreError, match="during the run"):
        writer.close()


@pytest.mark.parametrize("size", [0, 5, 9, 13])
def test_a_file_that_was_cut_stops_the_run_and_can_be_resumed(path, size):
    """The results that were cut off are gone; those before and the next one stay readable."""
    writer = GuardedWriter(path)
    for number in (1, 2, 3):
        writer.append(line(number))
    os.truncate(path, size)

    with pytest.raises(StoreError, match=f"cut this file from 27 to {size} bytes"):
        writer.append(line(4))
    writer.close()

    assert numbers(path) == [*range(1, 1 + size // 9), 4]


def test_a_device_is_written_as_it_is(tmp_path):
    """It has neither a size nor content to restore."""
    (tmp_path / "null").symlink_to(os.devnull)

    with closing(GuardedWriter(tmp_path / "null")) as writer:
        for number in range(3):
            writer.append(line(number))
            writer.sync()

    assert (tmp_path / "null").is_char_device()


def test_a_run_whose_folder_is_removed_can_be_resumed(tmp_path):
    """Rows, identity, results and failures come back, so that only the missing rollouts are repeated."""
    store = RolloutStore(tmp_path / "results" / "x.jsonl", sync_seconds=0.01)
    with store:
        store.begin([job(task) for task in range(4)])
        store.run.write_text("{}")
        store.write(scored_rollout(0))
        store.write(failed_rollout(job(1)))
        shutil.rmtree(tmp_path / "results")
        store.write(scored_rollout(2))

    assert store.can_resume()
    assert store.run.read_text() == "{}"
    with store:
        history = store.history()
        assert [str(job.key) for job in store.unfinished_jobs(history, 3)] == ["3-0", "1-0-a1"]


def test_a_run_whose_folder_is_replaced_by_a_file_is_saved_whole(tmp_path):
    """Nothing can be written to the folder any more; moved back, the saved files can be resumed."""
    folder = tmp_path / "out" / "deep"
    store = RolloutStore(folder / "x.jsonl")
    with pytest.raises(StoreError, match="replaced this folder during the run; the results are saved in") as caught:  # noqa: SIM117
        with store:
            store.begin([job(task) for task in range(4)])
            store.run.write_text("{}")
            store.write(scored_rollout(0))
            store.write(failed_rollout(job(1)))
            shutil.rmtree(tmp_path / "out")
            (tmp_path / "out").write_text("not ours")
            store.write(scored_rollout(2))

    assert f"move the files in {tmp_path / 'out_recovered' / 'deep'} to their folder" in str(caught.value)
    assert (tmp_path / "out").read_text() == "not ours"
    (tmp_path / "out").unlink()
    (tmp_path / "out_recovered").rename(tmp_path / "out")
    assert store.run.read_text() == "{}"
    with store:
        assert [str(job.key) for job in store.unfinished_jobs(store.history(), 3)] == ["3-0", "1-0-a1"]


def test_results_that_cannot_be_saved_are_not_called_complete(path, monkeypatch):
    """A full disk while a deleted file is written again loses the results; the error must not say otherwise."""
    with closing(GuardedWriter(path)) as writer:
        writer.append(line(1))
        path.unlink()
        with monkeypatch.context() as patch:

            def fail(*_):
                raise OSError(28, "No space left on device")

            patch.setattr(shutil, "copyfileobj", fail)
            with pytest.raises(StoreError, match="cannot be written again: No space left") as caught:
                writer.append(line(2))

    assert "lost" in caught.value.fix
    assert "can be resumed" not in str(caught.value)
