"""A folder for config files, and a way to resolve them without starting a process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.config.defaults import HostFacts
from nemo_gym.config.resolve import ResolvedConfig, ResolveRequest, resolve

MODEL = """\
policy_model:
  responses_api_models:
    openai_model:
      entrypoint: app.py
      openai_base_url: ${policy_base_url}
      openai_api_key: ${policy_api_key}
      openai_model: ${policy_model_name}
"""
ENV = "policy_base_url: http://localhost:1\npolicy_api_key: sk-verysecret\npolicy_model_name: m\n"
WEATHER = """\
weather:
  resources_servers:
    example_weather:
      entrypoint: app.py
      domain: agent
weather_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: weather}
      model_server:
        type: responses_api_models
        name: policy_model
      datasets:
        - {name: example, type: example, jsonl_fpath: data/example.jsonl}
"""


class Workspace:
    """A folder with config files."""

    MODEL = MODEL
    ENV = ENV
    WEATHER = WEATHER

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ports = iter(range(12000, 13000))

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.root / f"{name}.yaml").write_text(text, encoding="utf-8")

    def host_facts(self) -> HostFacts:
        return HostFacts(
            roots=[self.root],
            working_dir=self.root,
            pick_port=lambda taken, low, high: next(self.ports),
            own_address=lambda: "10.0.0.7",
        )

    def resolve(self, *overrides: str, **options: Any) -> ResolvedConfig:
        return resolve(ResolveRequest(overrides=overrides, **options), self.host_facts())


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    return Workspace(tmp_path)


@pytest.fixture
def weather(workspace: Workspace) -> Workspace:
    """The complete little example: a model, a resources server, an agent and env.yaml."""
    workspace.write(model=MODEL, weather=WEATHER, env=ENV)
    return workspace


@pytest.fixture
def error_of_config(workspace: Workspace) -> Callable[..., str]:
    """Return the text of the error that one config file causes."""
    from nemo_gym.errors import ConfigError

    def text(config: str, *overrides: str, **options: Any) -> str:
        workspace.write(bad=config)
        with pytest.raises(ConfigError) as caught:
            workspace.resolve("+config_paths=[bad.yaml]", *overrides, **options)
        return str(caught.value)

    return text
