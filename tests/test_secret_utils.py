"""`recursively_hide_secrets`: what `gym env resolve` prints."""

from omegaconf import OmegaConf

from nemo_gym.secret_utils import (
    MASKED_VALUE,
    hide_secrets_in_overrides,
    looks_like_secret_key,
    recursively_hide_secrets,
)


def test_secrets_are_hidden_in_place_and_settings_are_not():
    """The existing implementation masked `max_output_tokens` and forgot passwords."""
    config = OmegaConf.create(
        {
            "policy_api_key": "sk-abcdef",
            "server": {"password": "p", "max_output_tokens": 512, "api_keys": ["a", "b"], "stop_tokens": ["</s>"]},
            "list": [{"hf_token": "t"}, {"plain": "x"}],
            "copy": "${policy_api_key}",
            "unset": {"api_key": None},
            "missing": {"api_key": "???"},
        }
    )

    recursively_hide_secrets(config)

    assert OmegaConf.to_container(config) == {
        "policy_api_key": "****",
        "server": {
            "password": "****",
            "max_output_tokens": 512,
            "api_keys": ["****", "****"],
            "stop_tokens": ["</s>"],
        },
        "list": [{"hf_token": "****"}, {"plain": "x"}],
        "copy": "${policy_api_key}",
        "unset": {"api_key": None},
        "missing": {"api_key": "???"},
    }


def test_a_secret_from_an_interpolation_is_hidden_too(monkeypatch):
    """Most keys come from the environment, and their values appear in other texts too."""
    monkeypatch.setenv("A_KEY", "sk-from-env")
    config = OmegaConf.create({"api_key": "${oc.env:A_KEY}", "log": "sk-from-env was used"})

    recursively_hide_secrets(config)

    assert OmegaConf.to_container(config, resolve=True) == {"api_key": "****", "log": "**** was used"}


def test_plain_data_is_masked_as_well():
    """Callers also pass dictionaries; an unsupported type must not let a secret through."""
    config = {"a": [{"token": "x"}]}

    recursively_hide_secrets(config)

    assert config == {"a": [{"token": "****"}]}


def test_a_name_looks_secret_if_a_part_of_it_does():
    """Code that decides what to show needs the wider rule: a shown header may hold a token."""
    names = ("hf_token", "eos_token", "policy_api_key", "Extra-Headers", "KeyId", "password")

    assert all(looks_like_secret_key(name) for name in names)
    assert not any(looks_like_secret_key(name) for name in ("temperature", "model", "base_url"))


def test_secrets_in_overrides_are_masked():
    """Command lines are logged and stored with the run."""
    masked = hide_secrets_in_overrides(["+policy_api_key=sk-abcdefgh12345678", "+limit=3"])

    assert masked == [f"+policy_api_key={MASKED_VALUE}", "+limit=3"]
