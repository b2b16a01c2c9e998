"""Names and addresses that failures are attributed to."""

import pytest
from omegaconf import OmegaConf

from nemo_gym.rollouts.attribution import needed_servers, server_types

CONFIG = {
    "policy_base_url": "http://provider.test/v1",
    "head_server": {"host": "h", "port": 1},
    "m": {"responses_api_models": {"vllm": {"base_url": ["http://gpu1:8000/v1", "https://gpu2/v1"], "model": "x"}}},
    "p": {
        "responses_api_models": {"openai": {"openai_base_url": "${policy_base_url}", "other_base_url": "${nothing}"}}
    },
    "r": {"resources_servers": {"sums": {"search_base_url": "http://search.test/"}}},
    "a": {"responses_api_agents": {"simple": {}}},
    "n": 3,
}


@pytest.mark.parametrize("make", [dict, OmegaConf.create], ids=["plain", "omegaconf"])
@pytest.mark.parametrize(
    ("whom", "kind"),
    [
        ("m", "responses_api_models"),
        ("r", "resources_servers"),
        ("a", "responses_api_agents"),
        ("gpu1:8000", "responses_api_models"),
        ("https://gpu2:443/v1/responses", "responses_api_models"),
        ("search.test:80", None),
        ("head_server", None),
        ("stranger", None),
        ("http://[broken", None),
        ("", None),
    ],
)
def test_a_failure_is_a_models_when_its_provider_failed(make, whom, kind):
    """'The model was unreachable' is known by the provider's address, which no instance is called."""
    assert server_types(make(CONFIG))(whom) == kind


def test_interpolated_addresses_are_known_and_broken_ones_do_not_matter():
    """Attribution must not fail on an unrelated mistake."""
    assert server_types(OmegaConf.create(CONFIG))("provider.test:80") == "responses_api_models"


def test_the_servers_that_a_rollout_needs_include_those_of_its_environment() -> None:
    """The judge of an environment is used by every rollout of its agents, though no agent names it."""
    config = {
        "agent": {"responses_api_agents": {"x": {"resources_server": {"type": "resources_servers", "name": "env"}}}},
        "env": {"resources_servers": {"x": {"judges": [{"type": "responses_api_models", "name": "judge"}]}}},
        "judge": {"responses_api_models": {"x": {}}},
        "other": {"responses_api_models": {"x": {"fallback": "judge"}}},
    }

    assert needed_servers(config) == {
        "agent": {"agent", "env", "judge"},
        "env": {"env", "judge"},
        "judge": {"judge"},
        "other": {"other", "judge"},
    }
