"""Whatever people write, the answer is a configuration or a `ConfigError`."""

import copy
from pathlib import Path

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig

from nemo_gym.config.defaults import HostFacts
from nemo_gym.config.resolve import ResolveRequest, resolve
from nemo_gym.errors import ConfigError

GOOD = {
    "policy_model": {
        "responses_api_models": {"openai_model": {"entrypoint": "app.py", "openai_api_key": "${policy_api_key}"}}
    },
    "weather": {"resources_servers": {"example_weather": {"entrypoint": "app.py", "domain": "agent"}}},
    "agent": {
        "responses_api_agents": {
            "simple_agent": {
                "entrypoint": "app.py",
                "resources_server": {"type": "resources_servers", "name": "weather"},
                "model_server": {"type": "responses_api_models", "name": "policy_model"},
                "datasets": [{"name": "t", "type": "train", "jsonl_fpath": "x", "license": "MIT"}],
            }
        }
    },
    "policy_api_key": "sk-fuzz-secret",
    "head_server": {"host": "127.0.0.1", "port": 11000},
    "port_range_low": 10001,
    "disallowed_ports": [1],
    "results_dir": "out",
    "token_id_capture": {"enabled": True},
    "observability_enabled": False,
}

VALUES = """
    ??? ${a} ${policy_api_key} ${oc.env:NOPE} ${ ${a.b ${a:b} ${.x} ${..y} ${copy:weather} ${inherit_from:agent}
    responses_api_models resources_servers math train example app.py **** policy_model weather
"""
KEYS = """
    a b entrypoint name type domain host port datasets hosting responses_api_models resources_servers api_key
    responses_api_agents dummy_model _inherit_from _copy _delete_key config_paths head_server
"""

scalar = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(VALUES.split())
keys = st.sampled_from(KEYS.split()) | st.text(max_size=4)
tree = st.recursive(
    scalar,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(keys | st.integers() | st.booleans(), inner, max_size=4)
    ),
    max_leaves=15,
)


def host_facts() -> HostFacts:
    return HostFacts(
        roots=[Path("/nonexistent-root")],
        working_dir=Path("/w"),
        pick_port=lambda taken, low, high: max([20000, *taken]) + 1,
        own_address=lambda: "10.0.0.1",
    )


def outcome(initial: dict, *overrides: str) -> DictConfig | ConfigError:
    try:
        return resolve(ResolveRequest(overrides=overrides, initial=initial, hide_secrets=True), host_facts()).config
    except ConfigError as error:
        assert str(error)
        return error


def mutate_config(data: st.DataObject) -> dict:
    """The good configuration with a few values replaced, removed or added somewhere."""
    result = copy.deepcopy(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        node = result
        while True:
            steps = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not steps:
                break
            key = data.draw(st.sampled_from(steps))
            if isinstance(node[key], dict | list) and data.draw(st.booleans()):
                node = node[key]
                continue
            action = data.draw(st.sampled_from(["replace", "remove", "add"]))
            if action == "remove":
                del node[key]
            elif action == "add" and isinstance(node, dict):
                node[data.draw(keys)] = data.draw(tree)
            else:
                node[key] = data.draw(tree)
            break
    return result


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_damaged_configuration_is_a_config_error_without_secrets(data):
    """The writer of a broken config gets a message to act on, and no traceback that contains the key."""
    result = outcome(mutate_config(data))

    assert isinstance(result, DictConfig | ConfigError)
    assert "sk-fuzz-secret" not in str(result)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(keys, tree, max_size=5))
def test_any_tree_is_a_configuration_or_a_config_error(anything):
    """A crash inside the resolver would look like a bug of ours and hide the mistake in the file."""
    assert isinstance(outcome(anything), DictConfig | ConfigError)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.builds(
            lambda p, k, v: f"{p}{k}={v}",
            st.sampled_from(["", "+", "++", "~"]),
            st.sampled_from(["a", "a.b", "weather", "policy_model.responses_api_models", "port_range_low"]),
            st.sampled_from(["1", "{a: b}", "[x]", "${a}", "???", "'q q'", "", "{", "1,2"]),
        ),
        max_size=4,
    )
)
def test_any_overrides_give_a_configuration_or_a_config_error(tokens):
    """A typo on the command line must not end in a traceback."""
    assert isinstance(outcome(GOOD, *tokens), DictConfig | ConfigError)


def test_the_good_configuration_is_good():
    """Otherwise the mutations prove nothing."""
    assert isinstance(outcome(yaml.safe_load(yaml.safe_dump(GOOD))), DictConfig)
