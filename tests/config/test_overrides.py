"""Hydra's override grammar, through Hydra's own parser."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym import PARENT_DIR
from nemo_gym.config.overrides import apply_overrides, parse_overrides
from nemo_gym.errors import ConfigError


def tree(*tokens: str):
    return apply_overrides(parse_overrides(tokens))[0]


def error_text(*tokens: str) -> str:
    with pytest.raises(ConfigError) as caught:
        tree(*tokens)
    return str(caught.value)


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("+a.b.c=1", {"a": {"b": {"c": 1}}}),
        ("+a=null", {"a": None}),
        ("+a=true", {"a": True}),
        ("+a=1e-9", {"a": 1e-9}),
        ("+a='x y'", {"a": "x y"}),
        ('+a="1"', {"a": "1"}),
        ("+a=", {"a": ""}),
        ("+a=[1,b,{c: d}]", {"a": [1, "b", {"c": "d"}]}),
        ("+a={b: {c: [1]}}", {"a": {"b": {"c": [1]}}}),
        ("+a=${b.c}", {"a": "${b.c}"}),
        ("+a=${oc.env:HOME,none}", {"a": "${oc.env:HOME,none}"}),
        ("+a=http://h:1/v1", {"a": "http://h:1/v1"}),
        ("++a=x", {"a": "x"}),
        ("+config_paths=[a/b.yaml,/c/d.yaml]", {"config_paths": ["a/b.yaml", "/c/d.yaml"]}),
        ("hydra.run.dir=x", {}),
    ],
)
def test_values_follow_hydras_grammar(token, expected):
    """Scripts written for Hydra must give the same values here, down to null, numbers and quotes."""
    assert tree(token) == expected


def test_adding_twice_is_an_error_and_two_pluses_replace():
    """A long command line that sets one key twice by accident would run with an unintended value."""
    assert "'a' is given twice" in error_text("+a=1", "+a=2")
    assert tree("+a=1", "++a=2") == {"a": 2}
    assert tree("+a=1", "a=3") == {"a": 3}


def test_adding_a_mapping_to_a_mapping_merges_as_hydra_does():
    """Existing scripts build one block from several overrides."""
    assert tree("+a={x: 1}", "+a={y: 2}") == {"a": {"x": 1, "y": 2}}


def test_an_added_key_can_be_deleted_only_with_its_value():
    """Deleting by a value that does not match means the user expects another configuration."""
    assert tree("+a.b=1", "+a.c=2", "~a.b") == {"a": {"c": 2}}
    assert "has another value" in error_text("+a=1", "~a=2")


def test_without_a_plus_what_the_files_say_is_replaced(workspace):
    """The seed writes `simple_agent…name=simple_weather` without one."""
    workspace.write(a="x: {y: 1, z: [1, 2]}")

    config = workspace.resolve("+config_paths=[a.yaml]", "x.y=2", "x.z.1=9").config

    assert config.x == {"y": 2, "z": [1, 9]}


def test_a_key_from_a_file_can_be_deleted(workspace):
    """A user drops one setting of a shipped config without a copy of the file."""
    workspace.write(a="x: {y: 1, z: 2}")

    assert workspace.resolve("+config_paths=[a.yaml]", "~x.y").config.x == {"z": 2}


def test_changing_a_missing_key_suggests_the_nearest_one(workspace):
    """A misspelt key would otherwise be added and have no effect."""
    workspace.write(a="outer: {inner: 1}")

    with pytest.raises(
        ConfigError,
        match=r"override 'outer\.iner=2': cannot change 'outer\.iner': it does not exist — did you mean 'inner'",
    ):
        workspace.resolve("+config_paths=[a.yaml]", "outer.iner=2")
    with pytest.raises(ConfigError, match=r"\+fresh=2 to add it"):
        workspace.resolve("fresh=2")


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("+a=[1", "override '+a=[1', column 6: cannot be read"),
        ("+a b=c", "column 3"),
        ("justtext", "override 'justtext', column 9: cannot be read"),
        ("--flag", "is not an override"),
        ("+=3", "has no key before '='"),
        ("+a=1,2", "has several values"),
        ("+a@b=1", "config groups are not used here"),
        ("+a=\ud800", "is not valid UTF-8 text"),
        ("+a=" + "x" * 70_000, "is longer than 65,536 characters"),
        ("+a=" + "[" * 500 + "]" * 500, "nested more than 64 levels deep"),
        ("", "cannot be read"),
        ("+a=int(x)", "cannot be read"),
    ],
)
def test_an_unreadable_override_is_reported_with_its_column(token, expected):
    """Quoting for the shell is hard; the column shows which character arrived wrong."""
    assert expected in error_text(token)


def test_the_caret_points_at_the_mistake():
    """In a long override a column number alone makes the user count characters."""
    assert "    +a b=c\n      ^" in error_text("+a b=c")


def test_all_unreadable_overrides_are_reported_together():
    """One error per attempt would cost a run for every typo."""
    text = error_text("+a=[1", "+ok=1", "+b={")

    assert "2 problems" in text
    assert "+a=[1" in text
    assert "+b={" in text


def test_the_value_of_a_secret_is_not_repeated_in_the_error():
    """Error output ends up in logs and bug reports, where an API key must not be."""
    assert "hunter2" not in error_text("+policy_api_key=[hunter2")


def test_the_parser_is_not_loaded_when_there_is_nothing_to_parse():
    """Servers parse no command line; Hydra would cost them a quarter of a second."""
    code = (
        "import sys; from nemo_gym.config.overrides import parse_overrides; import nemo_gym.global_config;"
        "parse_overrides([]); print('hydra' in sys.modules)"
    )

    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd=PARENT_DIR) == "False\n"


@settings(max_examples=80, deadline=None)
@given(st.lists(st.text(alphabet="+~ab.=[]{},:'\"$ 1-@/\\()", max_size=20), max_size=3))
def test_any_override_is_parsed_or_a_config_error(tokens):
    """Hydra's parser raises many kinds of error; the user must get only the one that names the override."""
    try:
        apply_overrides(parse_overrides(tokens))
    except ConfigError as error:
        assert "override" in str(error)
