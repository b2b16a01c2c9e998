"""A file is whole or it is the earlier one."""

import os

import pytest

from nemo_gym.catalog.files import whole_file


def test_the_file_appears_when_the_block_ends(tmp_path):
    """Whoever watches the folder never reads half a file."""
    path = tmp_path / "new" / "out.jsonl"

    with whole_file(path) as stream:
        stream.write(b"one\n")
        assert not path.exists()

    assert path.read_bytes() == b"one\n"
    assert os.listdir(path.parent) == ["out.jsonl"]


def test_a_failure_leaves_what_was_there(tmp_path):
    """Yesterday's result is better than half of today's."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"earlier\n")

    with pytest.raises(RuntimeError, match="half way"), whole_file(path) as stream:
        stream.write(b"new")
        raise RuntimeError("half way")

    assert path.read_bytes() == b"earlier\n"
    assert os.listdir(tmp_path) == ["out.jsonl"]


def test_the_file_has_the_mode_of_any_new_file(tmp_path):
    """Colleagues in the same group can read results."""
    with whole_file(tmp_path / "whole") as stream:
        stream.write(b"")
    (tmp_path / "plain").write_bytes(b"")

    assert (tmp_path / "whole").stat().st_mode == (tmp_path / "plain").stat().st_mode
