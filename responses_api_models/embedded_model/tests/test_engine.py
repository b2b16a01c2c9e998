"""The engine's configuration errors and parameters, without starting llama.cpp."""

import importlib.util
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from responses_api_models.embedded_model import app
from responses_api_models.embedded_model.engine import Engine, EngineWorker, Sampling
from responses_api_models.embedded_model.weights import bundled_weights


def start(weights: Path) -> Engine:
    return Engine(weights, workers=1, threads=1, slots=1, context_length=128)


@pytest.fixture
def fake_package(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "xllamacpp" else find_spec(name))


def test_missing_packages_are_a_configuration_error_with_the_command_that_helps(monkeypatch, tmp_path):
    """Runtime and weights are optional: without them and without a registry, the message says what to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))

    for attempt in (bundled_weights, lambda: start(Path("x"))):
        with pytest.raises(ConfigError) as problem:
            attempt()
        assert "pip install" in str(problem.value.fix)


def test_weights_are_not_downloaded_for_a_missing_runtime(monkeypatch):
    """A newcomer without the extra must not wait for 98 MB to read that the extra is missing."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    config = {"name": "policy_model", "host": "127.0.0.1", "port": 1, "entrypoint": "app.py"}
    monkeypatch.setattr(app, "bundled_weights", lambda: pytest.fail("the weights were fetched"))

    with pytest.raises(ConfigError, match="xllamacpp is not installed"):
        app.EmbeddedModel.model_construct(config=app.EmbeddedModelConfig(**config)).model_post_init(None)


@pytest.mark.usefixtures("fake_package")
def test_weights_that_are_missing_or_no_gguf_are_named(tmp_path):
    """The error must come when the server starts, not with the first rollout."""
    other = tmp_path / "model.safetensors"
    other.write_bytes(b"{}")

    with pytest.raises(ConfigError, match="no weights at"):
        start(tmp_path / "none.gguf")
    with pytest.raises(ConfigError, match="not a GGUF file"):
        start(other)


@pytest.mark.parametrize(
    ("read", "prompt", "count"),
    [([], [1, 2], 0), ([1, 2, 3], [1, 2, 9, 3], 2), ([1, 2], [1, 2, 3], 2), ([5], [1], 0)],
)
def test_a_worker_counts_the_cached_tokens_of_a_prompt(read, prompt, count):
    """The engine chooses the worker by this number."""
    assert EngineWorker(server=None, free=1, prompt=read).cached_tokens(prompt) == count


def test_truncation_of_the_distribution_is_off_by_default():
    """Reported log-probabilities must be those of the sampling distribution."""
    request = Sampling(temperature=1.0).as_request()

    assert (request["top_k"], request["min_p"], request["top_p"], request["repeat_penalty"]) == (0, 0.0, 1.0, 1.0)
    assert "seed" not in request
