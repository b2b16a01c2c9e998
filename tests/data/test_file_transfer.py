"""One file is transferred: resumed, given up, verified, without a network."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nemo_gym.data import file_transfer
from nemo_gym.data.file_transfer import (
    ATTEMPTS,
    ChecksumMismatch,
    FileStream,
    RegistryError,
    TransferInterrupted,
    download_file,
    file_digest,
    metering_reads,
    remote_sha256,
)
from nemo_gym.errors import FileProblem

CONTENT = bytes(range(256)) * 40


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_transfer, "FIRST_PAUSE", 0.0)


class BreakingSource:
    """Streams a file and breaks off after the given numbers of bytes."""

    def __init__(self, *breaks: int, ranges: bool = True) -> None:
        self.breaks = list(breaks)
        self.ranges = ranges
        self.offsets: list[int] = []

    @contextmanager
    def __call__(self, offset: int) -> Iterator[FileStream]:
        self.offsets.append(offset)
        start = offset if self.ranges else 0
        yield FileStream(start, len(CONTENT), self.chunks(start))

    def chunks(self, start: int) -> Iterator[bytes]:
        if self.breaks:
            yield CONTENT[start : start + self.breaks.pop(0)]
            raise TransferInterrupted("the line went dead")
        yield CONTENT[start:]


CHECKSUM = hashlib.sha256(CONTENT).hexdigest()


def test_an_interrupted_transfer_is_resumed(tmp_path: Path) -> None:
    """Bytes that have arrived must not be sent again."""
    source = BreakingSource(1000, 0, 2000)

    digest = download_file(source, tmp_path / "x", checksum=CHECKSUM, location="here")

    assert source.offsets == [0, 1000, 1000, 3000]
    assert digest == file_digest(tmp_path / "x") and digest.size == len(CONTENT)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_source_without_ranges_is_read_from_the_start(tmp_path: Path) -> None:
    """Not every server supports ranges; its bytes must not be appended to the received part."""
    download_file(BreakingSource(1000, ranges=False), tmp_path / "x", checksum=CHECKSUM, location="here")

    assert (tmp_path / "x").read_bytes() == CONTENT


def test_attempts_without_progress_are_limited(tmp_path: Path) -> None:
    """A dead connection must end the command."""
    source = BreakingSource(*[0] * 100)

    with pytest.raises(RegistryError, match=r"here: gave up after 5 attempts: the line went dead"):
        download_file(source, tmp_path / "x", checksum=CHECKSUM, location="here")

    assert len(source.offsets) == ATTEMPTS and not (tmp_path / "x").exists()


def test_attempts_with_progress_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten gigabytes over a bad line are interrupted more than five times, and still arrive."""
    monkeypatch.setattr(file_transfer, "ENOUGH_PROGRESS", 500)

    download_file(BreakingSource(*[1000] * 8), tmp_path / "x", checksum=CHECKSUM, location="here")

    assert (tmp_path / "x").read_bytes() == CONTENT


def test_other_content_does_not_continue_a_received_part(tmp_path: Path) -> None:
    """Mixing two versions of a file would only be noticed by the checksum, after the whole download."""
    with pytest.raises(RegistryError):
        download_file(BreakingSource(100, *[0] * 9), tmp_path / "x", checksum=None, key="old", location="here")
    source = BreakingSource()

    download_file(source, tmp_path / "x", checksum=None, key="new", location="here")

    assert source.offsets == [0]


def test_content_that_fails_the_check_is_removed(tmp_path: Path) -> None:
    """The next attempt must not continue corrupt content."""
    with pytest.raises(ChecksumMismatch, match="not this"):
        download_file(BreakingSource(), tmp_path / "x", checksum="not this", location="here")

    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_output_fails_at_once(tmp_path: Path) -> None:
    """A retry does not make space."""
    (tmp_path / "file").write_bytes(b"")
    source = BreakingSource()

    with pytest.raises(FileProblem, match="cannot write"):
        download_file(source, tmp_path / "file" / "x", checksum=CHECKSUM, location="here")
    assert not source.offsets

    if Path("/dev/full").exists():
        with Path("/dev/full").open("ab", buffering=0) as full, pytest.raises(FileProblem, match="No space left"):
            file_transfer._append(source, full, file_transfer.ignore_progress)


def test_a_file_that_ends_early_is_interrupted() -> None:
    """A proxy that closes the connection cleanly must not pass for the end of the file."""

    @contextmanager
    def cut(offset: int) -> Iterator[FileStream]:
        yield FileStream(0, len(CONTENT), iter([CONTENT[:100]]))

    with pytest.raises(RegistryError, match="ended after 100 of 10,240 bytes"):
        remote_sha256(cut, "here")


def test_the_git_checksum_is_the_one_git_computes(tmp_path: Path) -> None:
    """The Hub reports only git's checksum of small files."""
    (tmp_path / "x").write_bytes(b"hello\n")

    assert file_digest(tmp_path / "x").git == "ce013625030ba8dba906f756967f9e9ca394464a"


def test_metering_reports_the_read_position(tmp_path: Path) -> None:
    """Client libraries open the file themselves and report no progress."""
    path = tmp_path / "x"
    path.write_bytes(CONTENT)
    if not Path("/proc/self/fdinfo").is_dir():
        pytest.skip("this system has no /proc/self/fdinfo")

    with path.open("rb", buffering=0) as file:
        file.read(4096)

        assert file_transfer._read_position(path) == 4096
    with metering_reads(path, file_transfer.ignore_progress):
        pass
