"""Names that programs import from where they used to be."""

import importlib
import inspect

import pytest

import nemo_gym.cli


@pytest.mark.parametrize(
    ("name", "home"),
    [
        ("RunHelper", "nemo_gym.cli.env"),
        ("RunConfig", "nemo_gym.cli.env"),
        ("GlobalConfigDictParserConfig", "nemo_gym.global_config"),
    ],
)
def test_a_moved_name_is_the_same_object_and_says_where_it_lives(name: str, home: str) -> None:
    """Trainers write `from nemo_gym.cli import RunHelper`; that works, and the warning points at their own line."""
    with pytest.warns(DeprecationWarning, match=f"import {name} from {home}") as caught:
        found: dict[str, object] = {}
        exec(f"from nemo_gym.cli import {name}", found)

    assert found[name] is getattr(importlib.import_module(home), name)
    assert {warning.filename for warning in caught} == {"<string>"}


def test_an_unknown_name_is_an_ordinary_attribute_error() -> None:
    """hasattr and misspellings behave as in any module."""
    assert not hasattr(nemo_gym.cli, "RunHelpre")


@pytest.mark.parametrize(
    "name",
    [
        "start", "run_forever", "shutdown", "poll", "wait_for_spinup", "wait_for_dry_run_spinup",
        "wait_for_model_endpoints", "check_http_server_statuses", "display_server_instance_info",
    ],
)  # fmt: skip
def test_a_trainer_calls_every_method_without_arguments(name: str) -> None:
    """The surface trainers were written against."""
    from nemo_gym.cli.env import RunHelper

    method = getattr(RunHelper(), name)
    assert not inspect.iscoroutinefunction(method)
    inspect.signature(method).bind()
    if name == "start":
        inspect.signature(method).bind(global_config_dict_parser_config=None)
