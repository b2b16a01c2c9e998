"""A real MLflow server for these tests: started once per session, on loopback, and killed at its end."""

import contextlib
import http.client
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

MLFLOW_PATIENCE = 150.0
TRIES = 3


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def start_mlflow(folder: Path, port: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    stores = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "files")]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    # Compiling MLflow takes half of its start: write the bytecode that the installer left out.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with (folder / "mlflow.log").open("ab") as log:
        return subprocess.Popen(
            [*command, *stores],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**env, **quiet},
            start_new_session=True,
        )


def end(process: "subprocess.Popen[bytes]") -> None:
    """Kill the server and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nemo_gym.data.file_transfer.FIRST_PAUSE", 0.0)


@pytest.fixture(autouse=True)
def _no_shared_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep replies of a fake Hub out of the user's cache, where they would break the library for a day."""
    if importlib.util.find_spec("huggingface_hub") is not None:
        monkeypatch.setattr("huggingface_hub.constants.AGENT_HARNESSES_PATH", str(tmp_path / "agent_harnesses.json"))


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a real MLflow server with a registry and artifacts, shared by all tests."""
    folder = tmp_path_factory.mktemp("mlflow_server")
    deadline = time.monotonic() + MLFLOW_PATIENCE
    for _ in range(TRIES):  # another process may take the port before the server does
        port = free_port()
        process = start_mlflow(folder, port)
        try:
            while process.poll() is None and time.monotonic() < deadline:
                if answers(port):
                    yield f"http://127.0.0.1:{port}"
                    return
                time.sleep(0.1)
        finally:
            end(process)
    pytest.fail(f"MLflow did not start:\n{(folder / 'mlflow.log').read_text()[-3000:]}")
