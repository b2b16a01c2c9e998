"""Conversion of OmegaConf trees, and the private OmegaConf methods that only `config.omegaconf_adapter` uses."""

import ast
from pathlib import Path

import pytest
from omegaconf import DictConfig, ListConfig, OmegaConf

import nemo_gym
from nemo_gym.config import omegaconf_adapter as omega


def test_a_configuration_becomes_plain_data():
    """Callers need dictionaries that JSON and pydantic accept."""
    config = OmegaConf.create({"a": {"b": "${c}"}, "c": [1], 2: "x"})

    assert omega.as_dict(config) == {"a": {"b": [1]}, "c": [1], "2": "x"}
    assert omega.as_dict(config, resolve=False)["a"] == {"b": "${c}"}
    assert type(omega.as_dict(config)["c"]) is list


@pytest.mark.parametrize("value", [None, 3, "text", OmegaConf.create([1])])
def test_a_value_that_is_no_mapping_becomes_an_empty_one(value):
    """A misconfigured block is reported by its check, not by a TypeError here."""
    assert omega.as_dict(value) == {}


def test_a_dictionary_with_omegaconf_values_becomes_plain_throughout():
    """Commands collect single values of a configuration in a dictionary."""
    assert omega.as_dict({"a": OmegaConf.create({"b": 1}), "c": 2}) == {"a": {"b": 1}, "c": 2}


def test_nodes_are_inspected_without_resolving_them():
    """These are OmegaConf's private methods: a new release that changes them must fail here."""
    config = OmegaConf.create(
        {"none": None, "missing": "???", "pointer": "${block}", "block": {"x": "${y}"}, "l": ["${y}"]}
    )
    config["none_block"] = DictConfig(None)
    items = dict(omega.unresolved_items(config))

    assert items["pointer"] == "${block}" or omega.is_interpolation_node(items["pointer"])
    assert omega.is_empty_node(DictConfig(None))
    assert omega.is_empty_node(ListConfig("???"))
    assert omega.is_interpolation_node(DictConfig("${block}"))
    assert not omega.is_empty_node(config)
    assert list(omega.unresolved_items(config["l"])) == [(0, "${y}")]
    assert list(omega.unresolved_items(config["block"])) == [("x", "${y}")]
    assert list(omega.unresolved_items({"a": 1})) == [("a", 1)]
    assert list(omega.unresolved_items(["a"])) == [(0, "a")]


def test_private_methods_of_omegaconf_are_used_in_one_module():
    """Private names are no interface; one place to repair when they change."""
    private = {"_is_none", "_is_missing", "_is_interpolation", "_iter_ex", "_get_node", "items_ex"}
    users = {
        path.name
        for path in (Path(nemo_gym.__path__[0]) / "config").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in private
    }

    assert users == {"omegaconf_adapter.py"}
