"""Moving one file: continuing, giving up, checking, without a network."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nemo_gym.data import hub_transfer
from nemo_gym.data.hub_transfer import (
    ATTEMPTS,
    Answer,
    ChecksumMismatch,
    Digest,
    RegistryError,
    TransferBroken,
    Unwritable,
    digest_of,
    download,
    remote_sha256,
    watched,
)

CONTENT = bytes(range(256)) * 40


class Source:
    """Hands out a file, and breaks off where it is told to."""

    def __init__(self, *breaks: int, ranges: bool = True) -> None:
        self.breaks = list(breaks)
        self.ranges = ranges
        self.asked: list[int] = []

    @contextmanager
    def __call__(self, offset: int) -> Iterator[Answer]:
        self.asked.append(offset)
        start = offset if self.ranges else 0
        yield Answer(start, len(CONTENT), self.chunks(start))

    def chunks(self, start: int) -> Iterator[bytes]:
        if self.breaks:
            yield CONTENT[start : start + self.breaks.pop(0)]
            raise TransferBroken("the line went dead")
        yield CONTENT[start:]


def right(digest: Digest) -> str | None:
    return None if digest.sha256 == hashlib.sha256(CONTENT).hexdigest() else "wrong"


def test_a_transfer_that_breaks_goes_on_where_it_was(tmp_path: Path) -> None:
    source = Source(1000, 0, 2000)

    digest = download(source, tmp_path / "x", key="k", where="here", check=right, pause=0)

    assert source.asked == [0, 1000, 1000, 3000]
    assert digest == digest_of(tmp_path / "x") and digest.size == len(CONTENT)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_source_that_starts_over_is_followed(tmp_path: Path) -> None:
    """Not every server continues; what it sends from the start replaces what is there."""
    download(Source(1000, ranges=False), tmp_path / "x", key="k", where="here", check=right, pause=0)

    assert (tmp_path / "x").read_bytes() == CONTENT


def test_attempts_without_progress_have_an_end(tmp_path: Path) -> None:
    source = Source(*[0] * 100)

    with pytest.raises(RegistryError, match=r"here: gave up after 5 attempts: the line went dead"):
        download(source, tmp_path / "x", key="k", where="here", check=right, pause=0)

    assert len(source.asked) == ATTEMPTS and not (tmp_path / "x").exists()


def test_attempts_with_progress_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten gigabytes over a bad line break more than five times, and still arrive."""
    monkeypatch.setattr(hub_transfer, "ENOUGH_PROGRESS", 500)

    download(Source(*[1000] * 8), tmp_path / "x", key="k", where="here", check=right, pause=0)

    assert (tmp_path / "x").read_bytes() == CONTENT


def test_other_content_does_not_continue_what_was_kept(tmp_path: Path) -> None:
    """The rest is kept under the content's own tag."""
    with pytest.raises(RegistryError):
        download(Source(100, *[0] * 9), tmp_path / "x", key="old", where="here", check=right, pause=0)
    source = Source()

    download(source, tmp_path / "x", key="new", where="here", check=right, pause=0)

    assert source.asked == [0]


def test_what_fails_the_check_is_gone(tmp_path: Path) -> None:
    with pytest.raises(ChecksumMismatch, match="not this"):
        download(Source(), tmp_path / "x", key="k", where="here", check=lambda _: "not this", pause=0)

    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    """Trying again does not make room."""
    (tmp_path / "file").write_bytes(b"")
    source = Source()

    with pytest.raises(Unwritable, match="cannot write"):
        download(source, tmp_path / "file" / "x", key="k", where="here", check=right, pause=0)
    assert not source.asked

    if Path("/dev/full").exists():
        with Path("/dev/full").open("ab", buffering=0) as full, pytest.raises(Unwritable, match="No space left"):
            hub_transfer._append(source, full, hub_transfer.no_meter)


def test_a_file_that_ends_early_is_broken_not_short() -> None:
    """A proxy that closes politely in the middle must not pass for the end."""

    @contextmanager
    def cut(offset: int) -> Iterator[Answer]:
        yield Answer(0, len(CONTENT), iter([CONTENT[:100]]))

    with pytest.raises(RegistryError, match="ended after 100 of 10,240 bytes"):
        remote_sha256(cut, where="here", pause=0)


def test_the_git_checksum_is_the_one_git_computes(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"hello\n")

    assert digest_of(tmp_path / "x").git == "ce013625030ba8dba906f756967f9e9ca394464a"


def test_watching_a_file_tells_how_far_it_is_read(tmp_path: Path) -> None:
    """Uploading libraries open the file themselves; its descriptor says how far they are."""
    path = tmp_path / "x"
    path.write_bytes(CONTENT)
    if not Path("/proc/self/fdinfo").is_dir():
        pytest.skip("this system does not tell")

    with path.open("rb", buffering=0) as file:
        file.read(4096)

        assert hub_transfer._read_position(path) == 4096
    with watched(path, hub_transfer.no_meter):
        pass
