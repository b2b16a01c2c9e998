"""The commands of the first instructions people were given still do what those say, old names and all.

They name the OpenAI model, so a stand-in for its endpoint runs here and `env.yaml` points at it, as it would at the
real one. Only the folder is new: everything else is typed as it was written.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_SECONDS = 500  # dozens of commands, on a machine that may do other things
pytestmark = pytest.mark.timeout(MAX_SECONDS + 60)
WEATHER = """
config_paths="resources_servers/simple_weather/configs/simple_weather.yaml,\\
responses_api_models/openai_model/configs/openai_model.yaml"
"""
FROM_ENV_YAML = """
ng_run '+config_paths=${simple_weather_config_paths}' \\
    +simple_agent.responses_api_agents.simple_agent.resources_server.name=simple_weather
"""
NEEDLES = """
config_paths="resources_servers/multineedle/configs/multineedle.yaml,\\
responses_api_models/openai_model/configs/openai_model.yaml"
"""


class Endpoint(BaseHTTPRequestHandler):
    """A model endpoint that calls `get_weather` once and then answers."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send({"object": "list", "data": []})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        items = body["input"] if isinstance(body["input"], list) else []
        called = any(item.get("type") == "function_call_output" for item in items)
        self._send(_response(body, "call" if body.get("tools") and not called else "say"))

    def log_message(self, *args: Any) -> None:
        """Print nothing, so that the output of the test stays readable."""

    def _send(self, answer: Any) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _response(body: dict[str, Any], what: str) -> dict[str, Any]:
    text = {"type": "output_text", "text": "It is cold: take a jacket.", "annotations": []}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    call = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "get_weather", "status": "completed"}
    return {
        "id": "resp_1", "object": "response", "created_at": 1, "model": body.get("model") or "m",
        "status": "completed", "error": None, "incomplete_details": None, "instructions": None, "metadata": {},
        "parallel_tool_calls": True, "temperature": 1.0, "tool_choice": "auto", "tools": body.get("tools") or [],
        "top_p": 1.0, "output": [message if what == "say" else {**call, "arguments": '{"city": "San Francisco"}'}],
    }  # fmt: skip


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """Create a working folder as in the instructions, with the model's address in env.yaml."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    folder = tmp_path / "work"
    shutil.copytree(ROOT / "resources_servers" / "multineedle", folder / "resources_servers" / "multineedle")
    (folder / "env.yaml").write_text(
        f"policy_base_url: http://127.0.0.1:{server.server_port}/v1\n"
        "policy_api_key: an-unchecked-key\n"
        "policy_model_name: gpt-4.1-2025-04-14\n"
        "simple_weather_config_paths:\n"
        "- responses_api_agents/simple_agent/configs/simple_agent.yaml\n"
        "- responses_api_models/openai_model/configs/openai_model.yaml\n"
        "- resources_servers/simple_weather/configs/simple_weather.yaml\n"
    )
    (tmp_path / "runtime").mkdir()
    yield folder
    server.shutdown()
    server.server_close()
    thread.join()


def shell_environment(here: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NEMO_GYM", "COV_"))}
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "XDG_RUNTIME_DIR": str(here.parent / "runtime"),
        "BROWSER": "true",
    }


def run_commands(here: Path, commands: str) -> "subprocess.CompletedProcess[str]":
    """Run commands in a shell, one after the other."""
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=here, env=shell_environment(here), capture_output=True, text=True, timeout=MAX_SECONDS, check=False,
    )  # fmt: skip


@contextmanager
def running(here: Path, command: str, *, until: str) -> Iterator[None]:
    """Run a command in the background, from the moment it prints `until`; stop it with Ctrl-C."""
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=here, env=shell_environment(here), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    watchdog = threading.Timer(MAX_SECONDS, os.killpg, (process.pid, signal.SIGKILL))
    watchdog.start()
    assert process.stdout is not None
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line)
            if until in line:
                break
        else:
            pytest.fail("".join(lines))
        yield
    finally:
        watchdog.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=60)


@pytest.mark.parametrize(
    "start",
    [
        f'{WEATHER} ng_run "+config_paths=[${{config_paths}}]"',
        FROM_ENV_YAML,
    ],
    ids=["as paths", "as a list in env.yaml"],
)
def test_the_weather_agent_answers(here: Path, start: str) -> None:
    """These commands are the first ten minutes of every user who follows the instructions."""
    with running(here, start, until="servers are ready"):
        done = run_commands(here, f"python {ROOT}/responses_api_agents/simple_agent/client.py")

    assert done.returncode == 0, done.stderr
    assert "function_call_output" in done.stdout
    assert "San Francisco is cold" in done.stdout.replace("\\", "")
    assert "take a jacket" in done.stdout


def test_needle_rows_are_prepared_collected_and_viewed(here: Path) -> None:
    """The path a new environment takes until others see it: checked rows, example rollouts, a look at them."""
    prepared = run_commands(
        here,
        f"""{NEEDLES}
        ng_prepare_data "+config_paths=[$config_paths]" \\
            +output_dirpath=data/multineedle \\
            +mode=example_validation""",
    )
    assert prepared.returncode == 0, prepared.stderr
    assert "ng_prepare_data is now `gym dataset collate`" in prepared.stderr
    assert len((here / "data/multineedle/example.jsonl").read_text().splitlines()) == 5

    start = f"""{NEEDLES} ng_run "+config_paths=[$config_paths]" \\
        +simple_agent.responses_api_agents.simple_agent.resources_server.name=multineedle"""
    with running(here, start, until="servers are ready"):
        collected = run_commands(
            here,
            """ng_collect_rollouts +agent_name=multineedle_simple_agent \\
                +input_jsonl_fpath=resources_servers/multineedle/data/example.jsonl \\
                +output_jsonl_fpath=resources_servers/multineedle/data/example_rollouts.jsonl \\
                +limit=null \\
                +num_repeats=null \\
                +num_samples_in_parallel=null
            ng_collect_rollouts +agent_name=simple_agent \\
                +input_jsonl_fpath=resources_servers/multineedle/data/example.jsonl \\
                +output_jsonl_fpath=results/multineedle_rollout_collection.jsonl \\
                +limit=null \\
                +num_repeats=null \\
                +num_samples_in_parallel=null""",
        )
    assert collected.returncode == 0, collected.stderr
    rollouts = (here / "results/multineedle_rollout_collection.jsonl").read_text().splitlines()
    assert [json.loads(line)["agent_ref"]["name"] for line in rollouts] == ["simple_agent"] * 5
    assert len((here / "resources_servers/multineedle/data/example_rollouts.jsonl").read_text().splitlines()) == 5

    with running(here, "ng_viewer +jsonl_fpath=results/multineedle_rollout_collection.jsonl", until="http://127.0.0.1"):
        pass


def test_a_configuration_is_dumped_by_swapping_one_word(here: Path) -> None:
    """`ng_run` and `ng_dump_config` take the same words; keys stay hidden."""
    done = run_commands(here, f'{NEEDLES} ng_dump_config "+config_paths=[$config_paths]"')

    assert done.returncode == 0, done.stderr
    assert "multineedle_simple_agent:" in done.stdout
    assert "an-unchecked-key" not in done.stdout


def test_a_new_resources_server_passes_its_tests(here: Path) -> None:
    """The first commands of an author must leave a folder whose tests pass."""
    done = run_commands(
        here,
        """
        ng_init_resources_server +entrypoint=resources_servers/test_weather
        ng_test +entrypoint=resources_servers/test_weather
        """,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 passed" in done.stdout


def test_a_missing_registry_address_is_explained(here: Path) -> None:
    """Without the address the commands cannot work; the message is the instruction."""
    up = run_commands(
        here,
        "ng_upload_dataset_to_gitlab +dataset_name=multineedle +version=0.0.1 "
        "+input_jsonl_fpath=resources_servers/multineedle/data/example.jsonl",
    )
    down = run_commands(
        here,
        "ng_download_dataset_from_gitlab +dataset_name=multineedle +version=0.0.1 "
        "+artifact_fpath=multineedle_benchmark.jsonl +output_fpath=data/multineedle_benchmark.jsonl",
    )

    assert (up.returncode, down.returncode) == (2, 2)
    assert "mlflow_tracking_uri" in up.stderr
    assert "env.yaml" in down.stderr
