"""`gym env start` and `gym env status` from the shell: real servers on loopback."""

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from nemo_gym.cli.env.status import format_duration
from nemo_gym.launch.ports import listen
from tests.processes import is_gone

GYM = (sys.executable, "-m", "nemo_gym.cli.main")
WEATHER = ("--resources-server", "example_single_tool_call", "--model-type", "scripted_model")


@pytest.fixture(autouse=True)
def own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the runs of other tests."""
    folder = tmp_path / "runtime"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))


def gym(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*GYM, *words], cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


@contextmanager
def running_servers(cwd: Path, *words: str, redirected: str = "") -> "Iterator[subprocess.Popen[str]]":
    """Run `gym env start` with shell redirections and wait until its servers are ready."""
    command = f"exec {shlex.join([*GYM, 'env', 'start', *WEATHER, *words])} {redirected}"
    process = subprocess.Popen(["bash", "-c", command], cwd=cwd, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        lines = lines_until(process.stderr, "servers are ready")
        assert "servers are ready" in "".join(lines), "".join(lines)
        yield process
    finally:
        process.kill()
        process.stderr.close()
        process.wait()


def lines_until(stream: IO[str], words: str) -> list[str]:
    """Read lines up to the first that contains `words`."""
    lines = []
    for line in stream:
        lines.append(line)
        if words in line:
            break
    return lines


@pytest.mark.parametrize(("number", "words", "cells"), [(signal.SIGINT, [], 1), (signal.SIGTERM, ["+num_cells=2"], 2)])
def test_running_servers_are_listed_and_stop_on_a_signal(
    tmp_path: Path, number: signal.Signals, words: list[str], cells: int
) -> None:
    """A run starts, is visible from another shell, and stops without leftovers; one cell is the default."""
    with running_servers(tmp_path, f"+nemo_gym_log_dir={tmp_path / 'logs'}", *words) as process:
        status = gym("env", "status", "--json", cwd=tmp_path)
        one = gym("env", "status", "--run", str(process.pid), cwd=tmp_path)
        process.send_signal(number)
        ended = process.wait(timeout=30)

    servers = json.loads(status.stdout)
    assert {server["process_name"]: server["status"] for server in servers} == {
        "example_single_tool_call": "success",
        "example_single_tool_call_simple_agent": "success",
        "policy_model": "success",
    }
    assert "3 servers found (3 healthy, 0 unhealthy)" in one.stdout
    assert ended == 0
    for server in servers:
        listen("again", server["host"], server["port"]).close()
        assert is_gone(server["pid"])
    assert not list((tmp_path / "runtime").rglob("*.json"))
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {f"cell_{n}.log" for n in range(cells)}


def test_a_head_port_the_user_chose_is_refused_when_taken(tmp_path: Path) -> None:
    """Other programs use that port; a head server on another port would send them to a stranger."""
    with listen("squatter", "127.0.0.1", 0) as squatter:
        port = squatter.getsockname()[1]

        done = gym("env", "start", *WEATHER, f"+head_server.port={port}", cwd=tmp_path)

    assert done.returncode == 3
    assert f"head_server: port {port} on 127.0.0.1 is in use" in done.stderr


def test_a_head_port_in_env_yaml_counts_as_chosen(tmp_path: Path) -> None:
    """The user chose it, wherever it is written."""
    with listen("squatter", "127.0.0.1", 0) as squatter:
        port = squatter.getsockname()[1]
        (tmp_path / "env.yaml").write_text(f"head_server: {{host: 127.0.0.1, port: {port}}}\n")

        done = gym("env", "start", *WEATHER, cwd=tmp_path)

    assert done.returncode == 3
    assert f"port {port} on 127.0.0.1 is in use" in done.stderr


def test_status_without_servers_is_not_a_failure(tmp_path: Path) -> None:
    """Scripts poll it."""
    empty = gym("env", "status", cwd=tmp_path)
    as_json = gym("env", "status", "--json", cwd=tmp_path)

    assert (empty.returncode, empty.stdout, empty.stderr) == (0, "", "no servers are running\n")
    assert json.loads(as_json.stdout) == []


def test_an_unknown_run_is_a_usage_error(tmp_path: Path) -> None:
    """A wrong number must not look like a run without servers."""
    done = gym("env", "status", "--run", "12", cwd=tmp_path)

    assert done.returncode == 2
    assert "unknown run '12'; no runs are running" in done.stderr


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.25, "4.2s"), (61, "1m 1.0s"), (3600, "1h 0m 0.0s"), (90061.5, "1d 1h 1m 1.5s")]
)
def test_uptime_is_readable(seconds: float, text: str) -> None:
    """Days must not be printed as seconds."""
    assert format_duration(seconds) == text


def test_servers_start_for_a_command_whose_input_and_output_are_closed(tmp_path: Path) -> None:
    """Some schedulers close what they do not use; a listening socket must not become a server's standard output."""
    with running_servers(tmp_path, redirected="<&- >&-") as process:
        status = gym("env", "status", cwd=tmp_path)
        process.send_signal(signal.SIGINT)
        ended = process.wait(timeout=60)

    assert (status.returncode, ended) == (0, 0)
