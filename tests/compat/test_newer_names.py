"""Names that folders for the newest release import are there with their signatures; those still missing are printed."""

import ast
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml

TABLE: dict[str, dict[str, list[str]]] = yaml.safe_load((Path(__file__).parent / "newer_names.yaml").read_text())
BUILT = [(module, name) for module, names in TABLE["built"].items() for name in names]
LATER = [(module, name) for module, names in TABLE["later"].items() for name in names]


def find_name(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(f"nemo_gym.{module}"), name, None)
    except ModuleNotFoundError as error:
        assert str(error.name).startswith("nemo_gym"), error
        return None


@pytest.mark.parametrize(("module", "name"), BUILT, ids=[f"{module}:{name}" for module, name in BUILT])
def test_a_name_of_the_newest_release_is_there_with_its_signature(module: str, name: str) -> None:
    """A missing name stops the import of a whole folder."""
    call = ast.parse(name, mode="eval").body

    target = find_name(module, call.func.id if isinstance(call, ast.Call) else name)

    assert target is not None
    if isinstance(call, ast.Call):
        keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg}
        inspect.signature(target).bind(*[None] * len(call.args), **keywords)


def test_the_names_still_missing_are_listed_as_missing(record_property: Any) -> None:
    """The list must not claim that a name is missing when it is there, nor the reverse."""
    missing = [f"{module}:{name}" for module, name in LATER if find_name(module, name) is None]
    record_property("missing", missing)
    for name in missing:
        print(f"still missing: nemo_gym.{name}")

    assert missing == [f"{module}:{name}" for module, name in LATER]
