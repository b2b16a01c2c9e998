"""Workspaces of rollouts: what rows may bring, and what is reported as changed."""

import tarfile
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from nemo_gym.errors import ConfigError
from nemo_gym.sandbox.workspaces import Workspace, WorkspaceChanges, read_snapshot


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"files": {"/etc/x": ""}}, "not a path below"),
        ({"files": {"a/../../x": ""}}, "not a path below"),
        ({"files": {"": ""}}, "not a path below"),
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
