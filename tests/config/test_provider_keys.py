"""API keys in the variables that the providers' own tools read."""

import pytest
from omegaconf import OmegaConf

from nemo_gym.config.interpolations import check_interpolations
from nemo_gym.config.provider_keys import adopt_provider_key, advise_on_provider_keys

ENVIRON = {"OPENAI_API_KEY": "sk-openai", "ANTHROPIC_API_KEY": "sk-ant", "AZURE_OPENAI_API_KEY": "k3y-of-azure"}
ENVIRON |= {"GEMINI_API_KEY": "k3y-of-gemini", "OPENROUTER_API_KEY": "sk-or"}


@pytest.mark.parametrize(
    ("url", "variable"),
    [
        ("https://api.openai.com/v1", "OPENAI_API_KEY"),
        ("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
        ("https://mine.openai.azure.com/openai/v1", "AZURE_OPENAI_API_KEY"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
        ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    ],
)
def test_the_key_of_the_provider_is_used_and_reported(url, variable):
    """The user has exported a key; a run that uses it says so."""
    tree = {"policy_base_url": url}

    (notice,) = adopt_provider_key(tree, ENVIRON)

    assert tree["policy_api_key"] == ENVIRON[variable]
    assert variable in notice and ENVIRON[variable] not in notice


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000/v1",
        "https://openrouter.ai.evil.example/api/v1",
        "https://api.openai.com.evil.example/v1",
        "https://evil.example/api.openai.com",
        "https://api.openai.com@evil.example/v1",
        "https://[api.openai.com/v1",
        None,
    ],
)
def test_a_key_is_never_sent_to_another_endpoint(url):
    """The operator of that endpoint would have the key."""
    tree = {"policy_base_url": url}

    assert adopt_provider_key(tree, ENVIRON) == []
    assert "policy_api_key" not in tree


@pytest.mark.parametrize("key", ["configured", ""])
def test_a_configured_key_is_kept(key):
    """An empty key is a choice too: the endpoint needs none."""
    tree = {"policy_base_url": "https://api.openai.com/v1", "policy_api_key": key}

    assert adopt_provider_key(tree, ENVIRON) == []
    assert tree["policy_api_key"] == key


def test_a_key_that_is_not_used_is_explained():
    """`gym doctor` finds the key; a run that asks for one must say why this key is not taken."""
    advice = advise_on_provider_keys(ENVIRON)

    assert "the key in OPENAI_API_KEY is used if policy_base_url is at api.openai.com" in advice
    assert "*.openai.azure.com or *.services.ai.azure.com" in advice
    assert not any(key in advice for key in ENVIRON.values())
    assert advise_on_provider_keys({"PATH": "/bin"}) == ""


def test_the_error_for_a_missing_key_names_the_key_of_the_environment():
    """The advice is of use only where the user reads it."""
    tree = {"policy_model": {"responses_api_models": {"m": {"api_key": "${policy_api_key}"}}}}
    advice = advise_on_provider_keys(ENVIRON)

    (problem,), _ = check_interpolations(
        OmegaConf.create(tree), tree, strict_under={"policy_model"}, env_name=None, key_advice=advice
    )

    assert problem.fix.endswith(advice)
