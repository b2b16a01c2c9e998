"""`python app.py`: a server folder running_server the way a parent process starts it, by two environment variables."""

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nemo_gym

TREE = Path(__file__).parent / "folders"
FOLDER = TREE / "resources_servers" / "capital_cities"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running_server(port: int, *settings: str, pattern: str = "<a>(.*?)</a>") -> Iterator[subprocess.Popen[str]]:
    block = f"{{entrypoint: app.py, host: 127.0.0.1, port: {port}, domain: other, answer_pattern: '{pattern}'}}"
    config = [
        "head_server: {host: 127.0.0.1, port: 1}",
        f"cities: {{resources_servers: {{capital_cities: {block}}}}}",
        *settings,
    ]
    environment = {
        **os.environ,
        "NEMO_GYM_CONFIG_DICT": "\n".join(config),
        "NEMO_GYM_CONFIG_PATH": "cities",
        "PYTHONPATH": os.pathsep.join(map(str, [FOLDER, TREE, nemo_gym.PARENT_DIR])),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "app.py"],
        cwd=FOLDER,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=20)


def get(port: int, path: str, process: subprocess.Popen[str]) -> tuple[int, bytes]:
    """GET as soon as the server listens. It cannot tell us when, so we knock, as its parent's head server does."""
    end = time.monotonic() + 30
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read()
        except ConnectionRefusedError:
            assert process.poll() is None and time.monotonic() < end, "the server did not come up"
            time.sleep(0.05)
        finally:
            connection.close()


def test_a_folder_serves_its_instance_of_the_configuration():
    """Instance id from one variable, configuration from the other, head server not needed to come up."""
    port = free_port()

    with running_server(port) as process:
        alive = get(port, "/", process)
        mode = get(port, "/reverify_mode", process)

    assert alive == (200, b'{"status":"ok"}')
    assert mode[0] == 200 and b"unknown" in mode[1]


def test_a_dry_run_builds_the_server_and_leaves():
    """`dry_run` proves that a folder imports and accepts its configuration, without opening a port."""
    with running_server(free_port(), "dry_run: true") as process:
        output, _ = process.communicate(timeout=60)

    assert process.returncode == 0, output


def test_a_server_that_cannot_be_built_exits_with_an_error():
    """The parent must notice; a server that hangs half-built would be waited for."""
    with running_server(free_port(), pattern="(") as process:
        output, _ = process.communicate(timeout=60)

    assert process.returncode not in (0, None)
    assert "unterminated subpattern" in output
