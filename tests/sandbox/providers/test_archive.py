"""Archives that come out of a sandbox are written by whatever ran in it."""

import io
import tarfile

import pytest

from nemo_gym.sandbox import SandboxError
from nemo_gym.sandbox.providers import archive


def tar_of(*entries: tarfile.TarInfo) -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for item in entries:
            made.addfile(item, io.BytesIO(b"x" * item.size))
    buffer.seek(0)
    return buffer


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = kind
    made.linkname = link
    made.size = size
    made.mode = 0o755
    return made


BOX = entry("box", tarfile.DIRTYPE)


def unpack_to(tmp_path, *entries, max_bytes=10**6):
    target = tmp_path / "out" / "here"
    archive.unpack(tar_of(*entries), "/box", target, max_bytes=max_bytes)
    return target


@pytest.mark.parametrize(
    "bad",
    [
        entry("box/../../escaped", size=1),
        entry("/escaped", size=1),
        entry("elsewhere/escaped", size=1),
        entry("box/link", tarfile.SYMTYPE, "/etc/passwd"),
        entry("box/link", tarfile.SYMTYPE, "../../.."),
        entry("box/link", tarfile.LNKTYPE, "/etc/passwd"),
        entry("box/link", tarfile.LNKTYPE, "box/../../../etc/passwd"),
        entry("box/device", tarfile.CHRTYPE),
        entry("box/pipe", tarfile.FIFOTYPE),
    ],
    ids=[
        "dots",
        "absolute",
        "other root",
        "symlink",
        "climbing symlink",
        "hard link",
        "climbing hard link",
        "device",
        "pipe",
    ],
)
def test_nothing_is_written_outside_the_target(tmp_path, bad):
    """A program in the sandbox chooses the names in an archive."""
    with pytest.raises(SandboxError, match=r"rejected|broken archive"):
        unpack_to(tmp_path, BOX, bad)

    assert {path.name for path in tmp_path.rglob("*")} <= {"out", "here"}


def test_a_link_does_not_bypass_the_check(tmp_path):
    """First a link to the outside, then a file through it: the classic attack."""
    with pytest.raises(SandboxError):
        unpack_to(tmp_path, BOX, entry("box/up", tarfile.SYMTYPE, ".."), entry("box/up/escaped", size=1))

    assert not list(tmp_path.rglob("escaped"))


def test_links_within_the_folder_are_kept(tmp_path):
    """Package managers make them; only those that lead out are refused."""
    target = unpack_to(
        tmp_path,
        BOX,
        entry("box/file", size=3),
        entry("box/hard", tarfile.LNKTYPE, "box/file"),
        entry("box/soft", tarfile.SYMTYPE, "file"),
    )

    assert (target / "hard").read_bytes() == (target / "soft").read_bytes() == b"xxx"


def test_a_folder_called_dot_is_unpacked(tmp_path):
    """`tar -C folder .` names its entries that way."""
    target = unpack_to(tmp_path, entry(".", tarfile.DIRTYPE), entry("./a", size=1))

    assert (target / "a").read_bytes() == b"x"


def test_a_single_file_is_written_to_the_target_itself(tmp_path):
    """A download of a file names the file."""
    assert unpack_to(tmp_path, entry("anything", size=2)).read_bytes() == b"xx"


def test_size_and_number_are_bounded(tmp_path, monkeypatch):
    """A sparse terabyte or a million names in the sandbox must not fill this disk."""
    with pytest.raises(SandboxError, match="more than 10 bytes"):
        unpack_to(tmp_path, BOX, entry("box/a", size=6), entry("box/b", size=6), max_bytes=10)
    monkeypatch.setattr(archive, "MAX_ENTRIES", 3)
    with pytest.raises(SandboxError, match="3 entries"):
        unpack_to(tmp_path, BOX, *(entry(f"box/{n}") for n in range(5)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "broken archive"),
        (b"no archive at all" * 100, "broken archive"),
        (tar_of().getvalue(), "the archive is empty"),
        (tar_of(entry("box", tarfile.SYMTYPE, "/etc")).getvalue(), "only files and directories"),
        (tar_of(BOX, entry("box/a", size=3000)).getvalue()[:2000], "broken archive"),
    ],
    ids=["empty", "garbage", "no entries", "a link", "cut"],
)
def test_a_broken_or_empty_archive_is_reported(tmp_path, content, message):
    """An engine may fail halfway."""
    with pytest.raises(SandboxError, match=message):
        archive.unpack(io.BytesIO(content), "/box", tmp_path / "out", max_bytes=10**6)


def test_a_packed_archive_holds_no_user_of_this_machine(tmp_path):
    """User names and ids are none of the sandbox's business."""
    (tmp_path / "f").write_text("x")
    packed = io.BytesIO()

    archive.pack({"/etc/f": tmp_path / "f"}, packed)
    packed.seek(0)

    with tarfile.open(fileobj=packed) as made:
        (member,) = made.getmembers()
    assert (member.name, member.uid, member.gid, member.uname, member.gname) == ("etc/f", 0, 0, "", "")
