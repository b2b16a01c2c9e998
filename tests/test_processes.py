"""Finding the processes of a tree."""

from pathlib import Path

from nemo_gym.processes import process_tree


def test_a_process_that_exits_while_its_children_are_listed_has_none(monkeypatch):
    """Killing a tree lists processes that exit at the same time, and must not fail halfway."""

    def vanish(_folder: Path, _pattern: str):
        raise FileNotFoundError("/proc/1234/task")

    monkeypatch.setattr(Path, "glob", vanish)

    assert list(process_tree(1234)) == [1234]
