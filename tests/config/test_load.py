"""Finding and reading files, whatever state they are in."""

import os
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_gym.config.load import load_files, read_source
from nemo_gym.config.search_roots import find_file
from nemo_gym.errors import ConfigError, ConfigPathNotFoundError, MalformedConfigPathsError


def error_text(path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_source(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"\xff\xfea\x00:\x001\x00", "is written in UTF-16"),
        (b"a: 1\nb: \xe9\n", "bad.yaml:2: is not UTF-8 text"),
        (b"- a\n- b\n", "contains a list, not a mapping"),
        (b"just text", "contains a single value, not a mapping"),
        (b"a: \x00", "bad.yaml:1"),
    ],
)
def test_a_file_that_is_not_a_mapping_in_utf8_is_named(tmp_path, monkeypatch, raw, expected):
    """Without the file and the line, a user with ten included configs cannot find the bad one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_bytes(raw)

    assert expected in error_text(tmp_path / "bad.yaml")


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path):
    """Editors on Windows add both, and the user cannot see them."""
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfa:\r\n  b: 1\r\nc: x\r\n")

    assert read_source(tmp_path / "a.yaml").tree == {"a": {"b": 1}, "c": "x"}


def test_a_ten_megabyte_config_is_refused_at_once(tmp_path):
    """Passing a dataset as a config is an easy mistake; parsing it would take minutes."""
    (tmp_path / "big.yaml").write_text("a: 1\n" * 2_000_000)
    started = time.process_time()

    text = error_text(tmp_path / "big.yaml")

    assert "10,000,000 bytes" in text
    assert ".jsonl" in text
    assert time.process_time() - started < 1


def test_an_unreadable_path_is_a_config_error(tmp_path):
    """An OSError with a traceback would not say which config was meant."""
    assert "cannot be read" in error_text(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path):
    """Opening a named pipe blocks forever if no process writes to it."""
    os.mkfifo(tmp_path / "pipe.yaml")

    with pytest.raises(ConfigPathNotFoundError):
        find_file("pipe.yaml", [tmp_path])


def test_earlier_roots_shadow_later_ones(tmp_path):
    """A user changes a shipped config by putting a file of that name into the project."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.yaml").write_text(f"x: {name}")

    assert find_file("a.yaml", [tmp_path / "one", tmp_path / "two"]) == tmp_path / "one" / "a.yaml"
    assert find_file(str(tmp_path / "two" / "a.yaml"), [tmp_path / "one"]) == tmp_path / "two" / "a.yaml"


@pytest.mark.parametrize("entry", ["", "  ", "a\0b", "x" * 5000, "nothing.yaml"])
def test_impossible_paths_are_reported_as_not_found(tmp_path, entry):
    """The operating system raises other errors for these; the user needs the one about config paths."""
    with pytest.raises(ConfigPathNotFoundError):
        find_file(entry, [tmp_path])


def test_a_folder_is_not_a_config_file(tmp_path):
    """Passing the folder of a server instead of its config is a common mistake; the error names it."""
    (tmp_path / "d").mkdir()

    with pytest.raises(ConfigPathNotFoundError, match="is a folder"):
        find_file("d", [tmp_path])


def test_a_missing_include_names_the_file_that_includes_it(tmp_path, monkeypatch):
    """The user never typed the missing name, so the name alone would not say what to edit."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("config_paths: [gone.yaml]")

    with pytest.raises(ConfigPathNotFoundError, match=r"^a\.yaml: config file 'gone\.yaml' does not exist"):
        load_files(["a.yaml"], [tmp_path])


@pytest.mark.parametrize("paths", ["b.yaml", "{x: y}", "[1]", "7"])
def test_config_paths_inside_a_file_must_be_a_list_too(tmp_path, paths):
    """A scalar would be read letter by letter or ignored, and its servers would be missing."""
    (tmp_path / "a.yaml").write_text(f"config_paths: {paths}")

    with pytest.raises(MalformedConfigPathsError, match=r"a\.yaml"):
        load_files(["a.yaml"], [tmp_path])


def test_a_link_to_itself_is_reported_as_not_found(tmp_path):
    """A broken checkout must not hang the command or end in an OSError."""
    (tmp_path / "a.yaml").symlink_to(tmp_path / "a.yaml")

    with pytest.raises(ConfigPathNotFoundError):
        load_files(["a.yaml"], [tmp_path])


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=40))
def test_any_bytes_are_a_mapping_or_a_config_error(tmp_path, raw):
    """Whatever a file contains, the user learns which file is wrong instead of reading a traceback."""
    (tmp_path / "x.yaml").write_bytes(raw)

    try:
        assert isinstance(read_source(tmp_path / "x.yaml").tree, dict)
    except ConfigError as error:
        assert "x.yaml" in str(error)
