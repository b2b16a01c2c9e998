"""Measure resolving and checking a configuration of 100 servers, without imports."""

import json
import tempfile
import time
from pathlib import Path

from nemo_gym.config.defaults import HostFacts
from nemo_gym.config.overrides import parse_overrides
from nemo_gym.config.resolve import ResolveRequest, resolve

INSTANCES = 100
LIMIT_SECONDS = 0.3

SERVER = """\
rs_{n}:
  resources_servers:
    example_single_tool_call:
      entrypoint: app.py
      domain: agent
      verified: false
      description: Basic single-step tool calling
"""
AGENT = """\
bench_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server:
        type: resources_servers
        name: rs_0
      model_server:
        type: responses_api_models
        name: policy_model
"""
MODEL = """\
policy_model:
  responses_api_models:
    openai_model:
      entrypoint: app.py
      openai_base_url: ${policy_base_url}
      openai_api_key: ${policy_api_key}
      openai_model: ${policy_model_name}
"""
ENV = "policy_base_url: http://localhost:8000/v1\npolicy_api_key: none\npolicy_model_name: model\n"


def measure(repeats: int = 5) -> dict[str, float]:
    """Return the CPU seconds of the fastest of several runs, and the limit."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "servers.yaml").write_text("".join(SERVER.format(n=n) for n in range(INSTANCES)) + AGENT)
        (root / "model.yaml").write_text(MODEL)
        (root / "env.yaml").write_text(ENV)
        around = HostFacts(
            roots=[root],
            working_dir=root,
            pick_port=lambda taken, low, _high: max([low, *taken]) + 1,
            own_address=lambda: "127.0.0.1",
        )
        request = ResolveRequest(overrides=["+config_paths=[servers.yaml,model.yaml]"])
        parse_overrides(["+warm=up"])
        return {"seconds": min(_once(request, around) for _ in range(repeats)), "limit_seconds": LIMIT_SECONDS}


def _once(request: ResolveRequest, around: HostFacts) -> float:
    begin = time.process_time()
    instances = resolve(request, around).instances.valid
    seconds = time.process_time() - begin
    assert len(instances) == INSTANCES + 2
    return seconds


if __name__ == "__main__":
    print(json.dumps(measure()))
