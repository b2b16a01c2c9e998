"""Commands and snippets of NeMo Gym's README, configuration guide and command page, in their order.

A local endpoint stands in for OpenAI, and a copy of the folders that the documents mention for the checkout. Transfers
to registries are in `tests/publish`, which has registries.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any, Self

import pytest
import yaml

from tests.processes import eventually

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
FOLDERS = (
    "resources_servers/example_single_tool_call",
    "resources_servers/multineedle",
    "responses_api_agents/simple_agent",
    "responses_api_models/openai_model",
)
OPENAI = "responses_api_models/openai_model/configs/openai_model.yaml"
AGENT = "responses_api_agents/simple_agent/configs/simple_agent.yaml"
WEATHER = "resources_servers/simple_weather/configs/simple_weather.yaml"
MULTINEEDLE = "resources_servers/multineedle/configs/multineedle.yaml"
pytestmark = pytest.mark.timeout(1200)  # each test starts servers or dozens of commands


class WeatherModel(BaseHTTPRequestHandler):
    """Answers like a model that calls `get_weather` once, if it has that tool, and then replies."""

    def do_GET(self) -> None:
        self.send_json({"object": "list", "data": [{"id": "gpt-4.1-2025-04-14", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        calls_tool = body.get("tools") and not any(i.get("type") == "function_call_output" for i in body["input"])
        call = {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": "get_weather",
            "status": "completed",
        }
        text = {"type": "output_text", "text": "It is cold; take a jacket.", "annotations": []}
        message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}
        item = {**call, "arguments": '{"city": "San Francisco"}'} if calls_tool else message
        fixed = {"id": "r", "object": "response", "created_at": 0, "model": body["model"], "parallel_tool_calls": True}
        self.send_json({**fixed, "tools": [], "tool_choice": "auto", "output": [item]})

    def send_json(self, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), WeatherModel) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


class Checkout:
    """A folder with the trees that the documents mention; commands run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        home = {"XDG_CACHE_HOME": str(folder / "user-cache"), "XDG_RUNTIME_DIR": str(folder / "runtime")}
        (folder / "runtime").mkdir(mode=0o700)
        self.env = {**os.environ, **home, "PATH": f"{BIN}:{os.environ['PATH']}", "COLUMNS": "120"}

    def shell(self, script: str, *, status: int = 0) -> str:
        """Run a script as it stands in a document; return what it printed."""
        run = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=self.env, capture_output=True, text=True, check=False
        )
        assert run.returncode == status, f"{script}\n{run.stdout}{run.stderr}"
        return run.stdout + run.stderr

    def servers(self, script: str) -> "Servers":
        return Servers(self, script)


class Servers:
    """A run of `ng_run` for the time of a block."""

    def __init__(self, checkout: Checkout, script: str) -> None:
        self.log = checkout.folder / "run.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", f"exec {script}"], cwd=checkout.folder, env=checkout.env, stdout=log, stderr=log
            )

    def __enter__(self) -> Self:
        ready = lambda: "servers are ready" in self.log.read_text() or self.process.poll() is not None  # noqa: E731
        assert eventually(ready, 300) and self.process.poll() is None, self.log.read_text()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(120)
        finally:
            self.process.kill()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory, endpoint: str) -> Checkout:
    folder = tmp_path_factory.mktemp("Gym")
    for name in FOLDERS:
        copytree(ROOT / name, folder / name, ignore=ignore_patterns("__pycache__", ".venv"))
    for name in ("simple_weather", "example_simple_weather"):
        assert (ROOT / "resources_servers" / name).is_symlink()
        (folder / "resources_servers" / name).symlink_to("example_single_tool_call")
    env = {"policy_base_url": endpoint, "policy_api_key": "sk-local", "policy_model_name": "gpt-4.1-2025-04-14"}
    env["simple_weather_config_paths"] = [AGENT, OPENAI, WEATHER]
    (folder / "env.yaml").write_text(yaml.safe_dump(env))
    return Checkout(folder)


def test_running_servers_and_asking_the_agent(checkout):
    """README, "Running servers": the run command, `client.py`, and the conversation it prints."""
    command = (
        f'ng_run "+config_paths=[{OPENAI},{WEATHER}]" '
        "+simple_weather_simple_agent.responses_api_agents.simple_agent.resources_server.name=simple_weather"
    )
    with checkout.servers(command):
        printed = checkout.shell("python responses_api_agents/simple_agent/client.py 2>/dev/null")

    call, output, message = json.loads(printed)
    assert (call["name"], json.loads(call["arguments"])) == ("get_weather", {"city": "San Francisco"})
    assert json.loads(output["output"])["weather_description"] == "The weather in San Francisco is cold."
    assert message["role"] == "assistant"


def test_config_paths_from_env_yaml(checkout):
    """README: `'+config_paths=${simple_weather_config_paths}'`, and the dump of what NeMo Gym sees."""
    printed = checkout.shell(
        "ng_dump_config '+config_paths=${simple_weather_config_paths}' "
        "+simple_agent.responses_api_agents.simple_agent.resources_server.name=simple_weather 2>/dev/null"
    )

    agent = yaml.safe_load(printed)["simple_agent"]["responses_api_agents"]["simple_agent"]
    assert agent["resources_server"]["name"] == "simple_weather"
    assert "sk-local" not in printed


def test_the_shared_model_under_its_earlier_names(checkout):
    """README, "Special policy model placeholders": instance `openai_model`, key `openai_model_name`."""
    fields = "\n      ".join(
        ["entrypoint: app.py", *(f"openai_{key}: ${{policy_{key}}}" for key in ("base_url", "api_key", "model_name"))]
    )
    path = checkout.folder / "placeholders.yaml"
    path.write_text(f"openai_model:\n  responses_api_models:\n    openai_model:\n      {fields}\n")

    checkout.shell(f'ng_validate "+config_paths=[placeholders.yaml,{WEATHER}]"')


def test_a_reference_to_a_missing_server_and_a_missing_value_are_reported_in_known_words(checkout):
    """README, "Configs": people search for the words of these two errors."""
    reference = "+simple_weather_simple_agent.responses_api_agents.simple_agent.model_server.name=simple_model_server"
    assert "could not find type='responses_api_models' name='simple_model_server' in the list of available servers" in (
        checkout.shell(f'ng_validate "+config_paths=[{OPENAI},{WEATHER}]" +{reference}', status=1)
    )
    (checkout.folder / "missing.yaml").write_text(
        "openai_model: {responses_api_models: {openai_model: {entrypoint: app.py, openai_api_key: '???'}}}\n"
    )
    printed = checkout.shell('ng_validate "+config_paths=[missing.yaml]"', status=1)

    assert "Missing mandatory value" in printed
    assert "openai_model.responses_api_models.openai_model.openai_api_key" in printed


def test_tests_of_a_server_with_the_command_and_inside_its_folder(checkout):
    """README, "Add a resource server": `ng_test`, then pytest in the activated environment of the folder."""
    checkout.shell("ng_test +entrypoint=resources_servers/simple_weather --no-audit")

    assert " passed" in checkout.shell("cd resources_servers/simple_weather && source .venv/bin/activate && pytest -q")


def test_a_new_resources_server(checkout):
    """README, "Add a resource server": the files that `ng_init_resources_server` writes can be run."""
    checkout.shell("ng_init_resources_server +entrypoint=resources_servers/test_weather")

    folder = checkout.folder / "resources_servers/test_weather"
    for name in ("app.py", "requirements.txt", "README.md", "tests/test_app.py", "data/example.jsonl"):
        assert (folder / name).is_file()
    checkout.shell(f'ng_validate "+config_paths=[{OPENAI},resources_servers/test_weather/configs/test_weather.yaml]"')


def test_preparing_collecting_and_viewing_multineedle(checkout):
    """README, the artifacts of a new server, and offline rollout collection."""
    checkout.shell(
        f'ng_prepare_data "+config_paths=[{OPENAI},{MULTINEEDLE}]" +output_dirpath=data/multineedle '
        "+mode=example_validation"
    )
    metrics = json.loads((checkout.folder / "resources_servers/multineedle/data/example_metrics.json").read_text())
    assert metrics["Number of examples"] == 5

    with checkout.servers(f'ng_run "+config_paths=[{OPENAI},{MULTINEEDLE}]"'):
        for agent in ("multineedle_simple_agent", "simple_agent"):
            checkout.shell(
                f"ng_collect_rollouts +agent_name={agent} "
                "+input_jsonl_fpath=resources_servers/multineedle/data/example.jsonl "
                f"+output_jsonl_fpath=results/{agent}.jsonl +limit=null +num_repeats=null +num_samples_in_parallel=null"
            )
            assert len((checkout.folder / f"results/{agent}.jsonl").read_text().splitlines()) == 5

    assert "5" in checkout.shell("ng_viewer +jsonl_fpath=results/simple_agent.jsonl --text")


def test_the_configuration_that_the_readme_prints_for_multineedle(checkout):
    """README, "Prepare and validate data": no domain, a repeated license, the model under its earlier name."""
    dataset = "license: Apache 2.0, jsonl_fpath: resources_servers/multineedle/data/{0}.jsonl, gitlab_identifier: "
    dataset += (
        "{{dataset_name: multineedle, version: 0.0.1, artifact_fpath: multineedle/{0}.jsonl}}, license: Apache 2.0"
    )
    (checkout.folder / "printed.yaml").write_text(
        "multineedle_resources_server:\n  resources_servers:\n    multineedle:\n      entrypoint: app.py\n"
        "multineedle_simple_agent:\n  responses_api_agents:\n    simple_agent:\n      entrypoint: app.py\n"
        "      resources_server: {type: resources_servers, name: multineedle_resources_server}\n"
        "      model_server: {type: responses_api_models, name: openai_model}\n      datasets:\n"
        + "".join(f"      - {{name: {n}, type: {n}, {dataset.format(n)}}}\n" for n in ("train", "validation"))
        + "      - {name: example, type: example, jsonl_fpath: resources_servers/multineedle/data/example.jsonl}\n"
    )

    checkout.shell(f'ng_validate "+config_paths=[printed.yaml,{OPENAI}]"')


def test_every_listed_environment_can_be_selected_by_its_name(checkout):
    """Command page: the names that `gym list environments` prints can be passed to `--environment`."""
    names = [row["name"] for row in json.loads(checkout.shell("gym list environments --json 2>/dev/null"))]
    words = " ".join(name for name in names if "judge" not in name)  # a judge needs another endpoint

    assert len(names) > 20
    checkout.shell(f"for name in {words}; do gym env validate --environment $name || exit 1; done")


def test_listed_benchmarks_have_their_number_of_repeats(checkout):
    """Command page: `gym list benchmarks` shows domain, agent and configured number of repeats."""
    header, *rows = checkout.shell("gym list benchmarks 2>/dev/null").splitlines()

    repeats = [row[header.index("Repeats") :].split()[0] for row in rows]
    assert repeats and all(text.isdigit() for text in repeats)


@pytest.mark.parametrize(("identifier", "is_reported"), [("", True), ("huggingface_identifier: {repo_id: a/b}", False)])
def test_training_data_without_a_place_to_download_it_from_is_reported(checkout, identifier, is_reported):
    """Configuration guide: train and validation datasets need a license and a place to download them from."""
    dataset = f"{{name: train, type: train, license: MIT, jsonl_fpath: x.jsonl{', ' * bool(identifier)}{identifier}}}"
    references = "resources_server: {type: resources_servers, name: multineedle}, "
    references += "model_server: {type: responses_api_models, name: policy_model}"
    agent = f"{{entrypoint: app.py, {references}, datasets: [{dataset}]}}"
    (checkout.folder / "training.yaml").write_text(f"mine: {{responses_api_agents: {{simple_agent: {agent}}}}}\n")

    printed = checkout.shell(f'ng_validate "+config_paths=[training.yaml,{MULTINEEDLE}]"')

    assert ("dataset 'train' of 'mine' has no gitlab_identifier" in printed) is is_reported
