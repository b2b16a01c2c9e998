"""The command `vf-eval` of the real verifiers package drives our resources and model servers."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verifiers.v1")

ROOT = Path(__file__).resolve().parents[2]
GYM = (sys.executable, "-m", "nemo_gym.cli.main")
VF_EVAL = Path(sys.executable).with_name("vf-eval")
SETTINGS = """\
model = "scripted"
num_rollouts = 1
push = false
[client]
base_url = "{model}/v1"
api_key_var = "ANY_KEY"
[env.taskset]
id = "nemo_gym"
dataset = "{dataset}"
[env.taskset.task]
resources_url = "{resources}"
[env.agent]
harness = {{id = "null"}}
runtime = {{type = "subprocess"}}
"""

StartServers = Callable[[str, list[dict[str, Any]]], dict[str, str]]


@pytest.fixture
def start_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartServers]:
    """Return a function that starts a resources server with a scripted model and returns the addresses by name."""
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))  # hides other runs
    processes: list[subprocess.Popen[str]] = []

    def start(name: str, script: list[dict[str, Any]]) -> dict[str, str]:
        words = ["--resources-server", name, "--model-type", "scripted_model"]
        model = {"responses_api_models": {"scripted_model": {"script": script}}}
        (tmp_path / "env.yaml").write_text(json.dumps({"policy_model": model}))  # JSON is YAML
        process = subprocess.Popen([*GYM, "env", "start", *words], stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        processes.append(process)
        assert process.stderr is not None
        assert any("servers are ready" in line for line in process.stderr)
        status = subprocess.run(
            [*GYM, "env", "status", "--json"], cwd=tmp_path, capture_output=True, timeout=60, check=True
        )
        return {server["process_name"]: server["url"] for server in json.loads(status.stdout)}

    yield start
    for process in processes:
        process.terminate()
        process.wait(timeout=60)
        assert process.stderr is not None
        process.stderr.close()


def vf_eval(folder: Path, resources: str, model: str, dataset: Path) -> list[dict[str, Any]]:
    """Run `vf-eval` and return its traces."""
    settings = folder / "eval.toml"
    settings.write_text(SETTINGS.format(resources=resources, model=model, dataset=dataset))
    environment = os.environ | {"ANY_KEY": "unused"}
    done = subprocess.run(
        [VF_EVAL, "@", str(settings)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (traces,) = folder.glob("outputs/*/traces.jsonl")
    return [json.loads(line) for line in traces.read_text().splitlines()]


def reward_of(episode: dict[str, Any]) -> float:
    (trace,) = episode["traces"]
    return float(trace["rewards"]["nemo_gym"]["score"])


def test_rewards_come_from_our_verifier(start_servers: StartServers, tmp_path: Path) -> None:
    """People with verifiers' trainers can use our environments; the reward must be ours."""
    dataset = ROOT / "resources_servers" / "arithmetic" / "data" / "example.jsonl"
    rows = [json.loads(line) for line in dataset.read_text().splitlines()]
    answer = rows[0]["expected_answer"]
    urls = start_servers("arithmetic", [{"text": str(answer)}])

    traces = vf_eval(tmp_path, urls["arithmetic"], urls["policy_model"], dataset)

    assert len(traces) == len(rows)
    assert sorted(map(reward_of, traces)) == sorted(float(row["expected_answer"] == answer) for row in rows)


def test_tools_are_called_on_our_server(start_servers: StartServers, tmp_path: Path) -> None:
    """verifiers offers our tools to the model through its bridge and returns their results."""
    dataset = ROOT / "resources_servers" / "example_single_tool_call" / "data" / "example.jsonl"
    script = [{"tool_calls": [{"name": "get_weather", "arguments": {"city": "Oslo"}}]}, {"text": "Take a coat."}]
    urls = start_servers("example_single_tool_call", script)

    traces = vf_eval(tmp_path, urls["example_single_tool_call"], urls["policy_model"], dataset)

    assert traces
    for trace in traces:
        results = [node for node in trace["traces"][0]["nodes"] if "The weather in Oslo is cold" in json.dumps(node)]
        assert len(results) == 1, "the result of the tool"
        assert reward_of(trace) == 1.0
