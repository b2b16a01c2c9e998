"""A real vLLM engine with a tiny model. `python3 dev.py vllm` creates its environment and runs these tests."""

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.processes import exit_with_parent, signal_group

SCRIPT = Path(__file__).with_name("tiny_model.py")
START_SECONDS, CALL_SECONDS, MODEL_SECONDS = 300, 60, 240
MAX_MODEL_LEN = 512


@dataclass
class RealEngine:
    """A running engine and the tools to inspect its model."""

    python: str
    folder: Path
    url: str = ""

    def script(self, command: str, text: str | None = None) -> str:
        """Run a command of `tiny_model.py` in the engine's environment and return its output."""
        words = [self.python, str(SCRIPT), command, str(self.folder)]
        result = subprocess.run(
            words, input=text, capture_output=True, text=True, timeout=MODEL_SECONDS, env=environment(), check=False
        )
        assert result.returncode == 0, result.stderr[-2000:]
        return result.stdout

    def score(self, sequences: list[dict[str, Any]]) -> list[list[float]]:
        """Compute log-probabilities as a trainer does: one forward pass of transformers for each sequence."""
        return json.loads(self.script("score", json.dumps(sequences)))

    def post(self, path: str, body: Any = None) -> Any:
        """Call a control route of the engine, which is not below `/v1`."""
        address = self.url.removesuffix("/v1") + path
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(address, json.dumps(body or {}).encode(), headers, method="POST")
        with urllib.request.urlopen(request, timeout=CALL_SECONDS) as reply:
            return json.loads(reply.read() or b"null")

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(self.url.removesuffix("/v1") + "/health", timeout=5) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False


def environment() -> dict[str, str]:
    """Return the environment of the engine: no network, no telemetry, one thread, and its control routes."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return inherited | {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture(scope="session")
def engine() -> Iterator[RealEngine]:
    """Start the engine once; the trained model is kept beside its environment."""
    python = os.environ.get("GYM_VLLM_PYTHON")
    if not python:
        pytest.skip("real vLLM is not at hand: run `python3 dev.py vllm`, which installs it if this machine can run it")
    digest = hashlib.sha256(SCRIPT.read_bytes()).hexdigest()[:12]
    trained = Path(python).parent.parent / f"tiny-model-{digest}"
    with tempfile.TemporaryDirectory() as temporary:
        if not trained.exists():
            made = RealEngine(python, Path(temporary, "made"))
            made.script("make")
            shutil.copytree(made.folder, trained)
        folder = Path(temporary, "model")
        shutil.copytree(trained, folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        served = RealEngine(python, folder, f"http://127.0.0.1:{port}/v1")
        log = Path(temporary, "engine.log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                command(served, port),
                env=environment(),
                cwd=temporary,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=exit_with_parent,
            )
        try:
            end = time.monotonic() + START_SECONDS
            while not served.is_ready():
                problem = "ended" if process.poll() is not None else f"did not start in {START_SECONDS} s"
                if process.poll() is not None or time.monotonic() > end:
                    pytest.fail(f"vLLM {problem}:\n{log.read_text(errors='replace')[-3000:]}")
                time.sleep(0.2)  # no notice comes from the other process
            yield served
        finally:
            signal_group(process.pid, signal.SIGKILL)
            process.wait(timeout=30)


def command(engine: RealEngine, port: int) -> list[str]:
    """Return the command line of the engine. The program `vllm` needs packages that exist for CUDA only."""
    options = {
        "--model": str(engine.folder),
        "--served-model-name": "tiny",
        "--host": "127.0.0.1",
        "--port": str(port),
        "--max-model-len": str(MAX_MODEL_LEN),
        "--dtype": "float32",
        "--max-num-seqs": "16",
        "--tool-call-parser": "hermes",
        "--reasoning-parser": "qwen3",
    }
    words = [word for pair in options.items() for word in pair]
    flags = ["--enable-scale-out", "--enable-auto-tool-choice", "--enforce-eager"]
    return [engine.python, "-m", "vllm.entrypoints.openai.api_server", *words, *flags]
