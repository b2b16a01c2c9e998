"""Where components and configs are looked for."""

import os
import sys
from pathlib import Path

import pytest

from nemo_gym.config.search_roots import (
    PARENT_DIR,
    _augment_sys_path,
    _resolve_under_cwd_or_install,
    component_search_roots,
)


@pytest.fixture(autouse=True)
def _clean_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEMO_GYM_EXTRA_ROOTS", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_the_working_directory_comes_before_the_installed_package(tmp_path):
    """A user's copy of a shipped component must win over the original."""
    assert component_search_roots() == [tmp_path, PARENT_DIR]


def test_extra_roots_come_first_and_are_read_on_every_call(tmp_path, monkeypatch):
    """A test or a launcher sets the variable after the import and expects it to take effect."""
    extra = [tmp_path / "one", tmp_path / "two"]
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", os.pathsep.join([*map(str, extra), ""]))

    assert component_search_roots() == [*extra, tmp_path, PARENT_DIR]


def test_a_root_named_twice_is_searched_once(tmp_path, monkeypatch):
    """Components would otherwise be listed twice, as if they were ambiguous."""
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(tmp_path / "link"))

    assert component_search_roots() == [tmp_path / "link", PARENT_DIR]


def test_sys_path_entries_are_searched_before_the_working_directory(tmp_path):
    """Components of installed packages are found, and no root is searched twice."""
    other = tmp_path / "lib"

    assert component_search_roots(sys_path=["", str(PARENT_DIR), str(other)]) == [other, tmp_path, PARENT_DIR]


def test_a_relative_path_is_found_under_the_first_root_that_has_it(tmp_path, monkeypatch):
    """Data paths in configs work both in a checkout and after an install."""
    extra = tmp_path / "extra"
    (extra / "data").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(extra))

    assert _resolve_under_cwd_or_install("data") == extra / "data"
    assert _resolve_under_cwd_or_install("nothing") == extra / "nothing"
    assert _resolve_under_cwd_or_install("/abs/x") == Path("/abs/x")
    assert _resolve_under_cwd_or_install("data", validator=lambda path: extra not in path.parents) == tmp_path / "data"


def test_extra_roots_are_added_to_sys_path_once(tmp_path, monkeypatch):
    """Servers import their modules from these roots, and sys.path must not grow with every call."""
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(tmp_path / "extra"))

    _augment_sys_path()
    once = list(sys.path)
    _augment_sys_path()

    assert sys.path == once
    assert sys.path[0] == str(tmp_path / "extra")
    assert sys.path[-2:] == [str(tmp_path), str(PARENT_DIR)]
