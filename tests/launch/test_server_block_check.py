"""Checked server blocks are remembered until their configuration or code changes."""

from pathlib import Path

import pytest

from nemo_gym.launch import server_block_check as check_cache


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "app.py").write_text("x = 1\n")
    return folder


def test_a_recorded_block_has_passed(folder: Path) -> None:
    """The second `gym env validate` must not import the server again."""
    digest = check_cache.block_digest(folder, "app.py", {"a": 1})
    assert not check_cache.has_passed(digest)

    check_cache.record_passed(digest)

    assert check_cache.has_passed(check_cache.block_digest(folder, "app.py", {"a": 1}))


def test_a_changed_value_or_source_file_is_checked_again(folder: Path) -> None:
    """A stale result would hide the very mistake the user just made."""
    digests = {
        check_cache.block_digest(folder, "app.py", {"a": 1}),
        check_cache.block_digest(folder, "app.py", {"a": 2}),
    }
    (folder / "config.py").write_text("y = 1\n")
    digests.add(check_cache.block_digest(folder, "app.py", {"a": 1}))
    (folder / "config.py").write_text("y = 10\n")
    digests.add(check_cache.block_digest(folder, "app.py", {"a": 1}))

    assert len(digests) == 4


def test_the_cache_is_bounded_and_a_damaged_one_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must neither grow without limit nor ever stop a command."""
    monkeypatch.setattr(check_cache, "MAX_ENTRIES", 2)
    for digest in ("one", "two", "three"):
        check_cache.record_passed(digest)
    assert [check_cache.has_passed(digest) for digest in ("one", "two", "three")] == [False, True, True]

    check_cache._cache_path().write_bytes(b"{")
    assert not check_cache.has_passed("three")
    check_cache.record_passed("four")
    assert check_cache.has_passed("four")


def test_a_cache_that_cannot_be_written_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers often have a read-only home."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    check_cache.record_passed("one")

    assert not check_cache.has_passed("one")
