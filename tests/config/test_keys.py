"""The table of global configuration keys."""

import argparse
from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from nemo_gym import global_config
from nemo_gym.cli.completion import find_candidates
from nemo_gym.cli.parser import GROUPS
from nemo_gym.cli.shared.options import add_config_arguments, config_overrides
from nemo_gym.config import keys
from nemo_gym.config.checks import check_keys
from nemo_gym.config.keys import ANY, COMMAND_KEYS, CONFIGURATION, KEYS, PORT, RESERVED_KEYS, Flag, Key, known_keys
from nemo_gym.config.schema_cli import BaseNeMoGymCLIConfig
from nemo_gym.errors import ConfigError
from tests.all_modules import import_all_modules
from tools import reference


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("+num_cells=abc", "override '+num_cells=abc': 'num_cells' must be a whole number above 0, not 'abc'"),
        ("+num_cells=0", "'num_cells' must be a whole number above 0, not 0"),
        ("+num_cells=2.5", "'num_cells' must be a whole number above 0, not 2.5"),
        ("+num_cells=true", "'num_cells' must be a whole number above 0, not True"),
        ("+request_timeout_seconds=0", "'request_timeout_seconds' must be a number above 0, not 0"),
        ("+connect_timeout_seconds=never", "'connect_timeout_seconds' must be a number above 0, not 'never'"),
        ("+unreachable_timeout_seconds=0", "'unreachable_timeout_seconds' must be a number above 0, not 0"),
        ("+interrupt_grace_seconds=-1", "'interrupt_grace_seconds' must be a number from 0, not -1"),
    ],
)
def test_a_wrong_value_is_one_configuration_error(workspace, override, expected):
    """`+num_cells=abc` used to validate, and `env start` ended with a bare ValueError."""
    with pytest.raises(ConfigError) as caught:
        workspace.resolve(override)

    assert expected in str(caught.value)


@pytest.mark.parametrize("key", ["num_cells", "num_repeats", "request_timeout_seconds", "interrupt_grace_seconds"])
def test_a_misspelling_of_a_documented_key_is_noticed(workspace, key):
    """These keys were documented, but the checker did not know them."""
    (warning,) = workspace.resolve(f"+{key}x=1").warnings

    assert f"did you mean '{key}'?" in warning


def test_the_defaults_of_the_table_pass_its_own_checks():
    """A default that the checker refuses would make the reference page wrong."""
    assert check_keys({key.name: key.default for key in KEYS.values() if key.default is not None}) == []


def test_every_key_of_the_table_has_a_meaning():
    """The reference page and `gym explain` print it."""
    assert [key.name for key in KEYS.values() if not key.meaning.endswith(".")] == []


def test_no_key_is_stated_twice():
    """One table, one home per fact."""
    assert KEYS.keys() & COMMAND_KEYS == set()
    assert len(set(RESERVED_KEYS)) == len(RESERVED_KEYS)


def subclasses(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for child in base.__subclasses__():
        yield child
        yield from subclasses(child)


def test_every_key_that_a_command_reads_is_known():
    """Otherwise a correct key next to it would be reported as a misspelling, and a misspelling of it would not."""
    import_all_modules()

    classes = [cls for cls in subclasses(BaseNeMoGymCLIConfig) if cls.__module__.startswith("nemo_gym.")]
    unknown = {cls.__name__: sorted(cls.model_fields.keys() - known_keys()) for cls in classes}

    assert len(classes) > 20
    assert {name: keys for name, keys in unknown.items() if keys} == {}


def test_a_key_with_a_flag_touches_only_the_table(workspace, monkeypatch):
    """Flag, check, completion and reference page of a key come from its one entry."""
    flag = Flag("--colour", "NUMBER", title=CONFIGURATION, kind=int, note="for tests")
    monkeypatch.setitem(keys._keys, "colour", Key("colour", PORT, "Colour of the run.", 7, flag=flag))
    parser = argparse.ArgumentParser()
    add_config_arguments(parser)
    args = parser.parse_args(["--colour", "0"])
    args.overrides = []

    assert "colour of the run (colour; default: 7); for tests" in " ".join(parser.format_help().split())
    assert config_overrides(args) == ["+colour=0"]
    with pytest.raises(ConfigError, match="'colour' must be a port from 1 to 65535, not 0"):
        workspace.resolve("+colour=0")
    assert "did you mean 'colour'?" in workspace.resolve("+colours=3").warnings[0]
    assert find_candidates(["eval", "run"], "++colo") == ["++colour="]
    assert "| `colour` | a port from 1 to 65535 | 7 | `--colour` | Colour of the run. |" in reference.config_keys_page()


def test_a_policy_of_a_server_that_is_set_for_the_run_is_no_silent_mistake(workspace):
    """`+tool_errors=fail` would change nothing, and broken tools would go on to be scored."""
    sums = "+sums={resources_servers: {sums: {entrypoint: app.py, domain: math}}}"
    (warning,) = workspace.resolve("+tool_errors=fail", sums).warnings

    assert "'tool_errors' has no effect here: it is a field of each resources server" in warning
    assert "+sums.resources_servers.sums.tool_errors=…" in warning
    (unused,) = workspace.resolve("+close_idle_seconds=5").warnings
    assert "try:" not in unused


def test_every_flag_of_the_table_belongs_to_a_command():
    """A flag whose command has another name would be accepted nowhere."""
    commands = {f"{group} {name}" for group, (_, names) in GROUPS.items() for name in names}

    named = {command for key in KEYS.values() if key.flag for command in key.flag.command.split(",")}
    assert named <= {"", *commands}


def test_the_help_of_a_flag_keeps_abbreviations():
    """`uRL of the model` looks like a mistake."""
    assert KEYS["policy_base_url"].flag_help.startswith("URL of")
    assert KEYS["policy_model_name"].flag_help.startswith("name of")


def test_the_keys_of_outgoing_calls_are_known_with_the_same_defaults():
    """`docs/reference/configuration-keys.md` shows the defaults of the table."""
    from nemo_gym.transport.http_sessions import GlobalAIOHTTPAsyncClientConfig

    defaults = {name: field.default for name, field in GlobalAIOHTTPAsyncClientConfig.model_fields.items()}

    assert {name: KEYS[name].default for name in defaults} == defaults
    assert all(KEYS[name].type is not ANY for name in defaults)


@pytest.mark.parametrize(
    ("constant", "key"),
    [
        ("HF_TOKEN_KEY_NAME", "hf_token"),
        ("POLICY_API_KEY_KEY_NAME", "policy_api_key"),
        ("INHERIT_FROM_KEY_NAME", "_inherit_from"),
        ("DELETE_KEY_KEY_NAME", "_delete_key"),
        ("ONBOARDING_NAME_KEY_NAME", "onboarding_name"),
    ],
)
def test_every_key_has_a_public_constant(constant, key):
    """Existing server folders import these names."""
    assert getattr(global_config, constant) == key
    assert constant in vars(global_config), "`import *` would not have it"


def test_an_unknown_constant_is_an_attribute_error():
    """A typo in an import must not become a key."""
    with pytest.raises(AttributeError, match="NO_SUCH_KEY_NAME"):
        _ = global_config.NO_SUCH_KEY_NAME
