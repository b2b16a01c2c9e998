"""Workspaces of rollouts: what rows may bring, and what is reported as changed."""

import io
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from nemo_gym.errors import ConfigError
from nemo_gym.sandbox.providers.archive import regular_files
from nemo_gym.sandbox.spec import SandboxError
from nemo_gym.sandbox.workspaces import Workspace, WorkspaceChanges, read_snapshot


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"files": {"/etc/x": ""}}, "not a path below"),
        ({"files": {"a/../../x": ""}}, "not a path below"),
        ({"files": {"": ""}}, "not a path below"),
        ({"files": {"x" * 256: ""}}, "longer than 255 bytes"),
        ({"files": {"\ud800": ""}}, "the path .* is not valid text"),
        ({"files": {"x": "half \ud83d"}}, "the content .* is not valid text"),
        ({"files": {"x": {"base64": "?"}}}, "not base64"),
        ({"archive": "/etc/shadow"}, "not a path below"),
        ({"git_bundle": "../x"}, "not a path below"),
        ({"archive": "a", "git_bundle": "b"}, "not both"),
        ({"revision": "main"}, "needs a `git_bundle`"),
        ({"git_bundle": "b", "revision": "--upload-pack=x y"}, "String should match"),
        ({"file": {}}, "Extra inputs"),
    ],
)
def test_a_row_cannot_name_files_outside_of_its_workspace(fields: dict[str, Any], problem: str) -> None:
    """Rows are data of others: they must not read or write files of the machine."""
    with pytest.raises(ValidationError, match=problem):
        Workspace.model_validate(fields)


def test_files_are_written_over_those_of_the_archive(tmp_path: Path) -> None:
    """A row can change one file of a repository that many rows share."""
    source = tmp_path / "source.txt"
    source.write_text("of the archive")
    with tarfile.open(tmp_path / "r.tar.gz", "w:gz") as archive:
        archive.add(source, "a.txt")
        archive.add(source, "sub/b.txt")
    workspace = Workspace.model_validate(
        {"archive": "r.tar.gz", "files": {"a.txt": "of the row", "c.bin": {"base64": "AP8="}}}
    )

    has_files = workspace.write(tmp_path / "out", tmp_path)

    assert has_files
    assert read_snapshot(tmp_path / "out") == {
        "a.txt": b"of the row",
        "sub/b.txt": b"of the archive",
        "c.bin": b"\x00\xff",
    }


def test_a_missing_or_broken_archive_is_one_error(tmp_path: Path) -> None:
    """A dataset without its archives must say which one is missing."""
    (tmp_path / "broken.tar").write_text("no archive")
    with pytest.raises(ConfigError, match=r"archive of the workspace 'gone\.tar' does not exist"):
        Workspace(archive="gone.tar").write(tmp_path / "out", tmp_path)
    with pytest.raises(ConfigError, match="cannot be unpacked"):
        Workspace(archive="broken.tar").write(tmp_path / "out", tmp_path)


def test_changes_are_new_changed_and_deleted_files_with_a_diff() -> None:
    """The verifier gets what the agent did, not what the repository is."""
    before = {"same": b"x", "changed": b"one\ntwo\n", "gone": b"old", "data": b"\x00"}
    after = {"same": b"x", "changed": b"one\n2\n", "new": b"no newline", "data": b"\x00\x01"}

    changes = WorkspaceChanges.between(before, after)

    assert changes.as_dict()["files"] == {"changed": "one\n2\n", "data": {"base64": "AAE="}, "new": "no newline"}
    assert changes.deleted == ("gone",)
    assert "--- a/changed\n+++ b/changed\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n" in changes.diff
    assert "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+no newline\n\\ No newline at end of file\n" in changes.diff
    assert "Binary file data differs\n" in changes.diff
    assert "--- a/gone\n+++ /dev/null\n" in changes.diff


def test_only_a_newline_ends_a_line_of_the_diff() -> None:
    """Form feeds and carriage returns are in sources; a diff that ends lines there cannot be applied."""
    before, after = b"a\x0cb\rc\xe2\x80\xa8d\nold\n", b"a\x0cb\rc\xe2\x80\xa8d\nnew\n"

    diff = WorkspaceChanges.between({"f": before}, {"f": after}).diff

    assert diff == "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\x0cb\rc\u2028d\n-old\n+new\n"


def test_links_and_ignored_names_are_no_files_of_a_workspace(tmp_path: Path) -> None:
    """A link in a workspace of a model may point anywhere on the host."""
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_text("x")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("x")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "real").write_text("x")

    assert read_snapshot(tmp_path) == {"real": b"x"}
    assert read_snapshot(tmp_path, ["real", "*.pyc"]) == {".git/config": b"x"}


def test_a_changed_line_of_a_large_file_is_in_the_diff_with_its_number() -> None:
    """The common lines around a change are not searched, and the header must name the right lines nevertheless."""
    lines = [f"line {number}\n" for number in range(20_000)]
    changed = [*lines[:9_999], "changed\n", *lines[10_000:]]

    diff = WorkspaceChanges.between({"a": "".join(lines).encode()}, {"a": "".join(changed).encode()}).diff

    assert "@@ -9997,7 +9997,7 @@\n line 9996\n" in diff
    assert "-line 9999\n+changed\n line 10000\n" in diff
    assert diff.count("\n") == 2 + 1 + 8


def test_the_diff_of_a_file_that_was_rewritten_is_bounded() -> None:
    """Comparing all lines with all others takes minutes, in which the agent server could do nothing else."""
    before, after = (b"".join(b"%d %d\n" % (salt, number % 300) for number in range(9_000)) for salt in (1, 2))

    changes = WorkspaceChanges.between({"a": before}, {"a": after})

    assert changes.diff == "File a differs in too many lines for a diff\n"
    assert changes.files == {"a": after}


def test_a_diff_that_is_larger_than_a_megabyte_ends_with_a_note() -> None:
    """The contents are in the record already; a second copy of tens of megabytes helps no reader."""
    changes = WorkspaceChanges.between({}, {"a": b"x\n", "b": b"x" * (2 << 20), "c": b"x\n"})

    assert changes.diff.endswith("File b differs; the diff ends here, because it is too large\n")
    assert list(changes.files) == ["a", "b", "c"]


def test_only_regular_files_of_an_archive_are_read() -> None:
    """What a program leaves is not to be trusted: links, devices and odd names must neither be followed nor fail."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, kind, link in (
            ("root", tarfile.DIRTYPE, ""),
            ("root/link", tarfile.SYMTYPE, "/etc/passwd"),
            ("root/pipe", tarfile.FIFOTYPE, ""),
            ("root/node_modules/x", tarfile.REGTYPE, ""),
            ("root/empty", tarfile.REGTYPE, ""),
            ("root/twin", tarfile.LNKTYPE, "root/empty"),
            ("root/astray", tarfile.LNKTYPE, "root/link"),
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, link
            archive.addfile(entry)

    packed.seek(0)
    files = regular_files(packed, "/root", root="root", ignored=["node_modules"], max_bytes=10)

    assert files == {"empty": b"", "twin": b""}


def test_an_archive_with_more_bytes_than_allowed_is_refused() -> None:
    """The limit must hold before the bytes are in memory."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo("root/a")
        entry.size = 11
        archive.addfile(entry, io.BytesIO(b"x" * 11))
    packed.seek(0)
    with pytest.raises(SandboxError, match="more than 10 bytes"):
        regular_files(packed, "/root", root="root", ignored=[], max_bytes=10)


@pytest.mark.parametrize("files", [{"a": "", "a/b": ""}, {"a/b": "", "a": ""}, {"d/" * 2000 + "x": ""}])
def test_files_that_cannot_exist_together_are_one_error(files: dict[str, str], tmp_path: Path) -> None:
    """A generator of rows can write paths that no file system has; the row must be named, not a line of ours."""
    with pytest.raises(ConfigError, match="of the workspace cannot be written"):
        Workspace.model_validate({"files": files}).write(tmp_path / "out")


def test_an_archive_that_is_larger_than_the_disk_of_a_box_is_not_unpacked(tmp_path: Path) -> None:
    """A few kilobytes of compressed zeros must not fill the disk of the machine."""
    with tarfile.open(tmp_path / "r.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("zeros")
        entry.size = 1 << 20
        archive.addfile(entry, io.BytesIO(bytes(entry.size)))

    with pytest.raises(ConfigError, match="unpacked, it has more than 1,000 bytes"):
        Workspace(archive="r.tar.gz").write(tmp_path / "out", tmp_path, 1000)
    assert list((tmp_path / "out").iterdir()) == []


def test_an_archive_that_was_cut_is_one_error(tmp_path: Path) -> None:
    """An interrupted download is the usual cause, and must be named."""
    with tarfile.open(tmp_path / "r.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("a")
        entry.size = 1 << 16
        archive.addfile(entry, io.BytesIO(random.Random(0).randbytes(entry.size)))
    content = (tmp_path / "r.tar.gz").read_bytes()
    (tmp_path / "r.tar.gz").write_bytes(content[: len(content) // 2])

    with pytest.raises(ConfigError, match="cannot be unpacked"):
        Workspace(archive="r.tar.gz").write(tmp_path / "out", tmp_path)
