"""Faults before servers are up: one clear error that names the server, the right exit status, no process left."""

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.launch.ports import listen
from nemo_gym.launch.venv_build import uv_executable

GOOD = """
    from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer

    class Good(SimpleResourcesServer):
        {declared}
        config: BaseResourcesServerConfig

        async def verify(self, body):
            raise NotImplementedError

    if __name__ == "__main__":
        Good.run_webserver()
"""
CELL, PROCESS = GOOD.format(declared='HOSTING = "cell"'), GOOD.format(declared="")


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which runs of this test register themselves."""
    folder = tmp_path / "runtime"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


@pytest.fixture
def start(tmp_path: Path, runtime: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Run `gym env start` with one instance, `faulty`, of the folder of that name."""

    def run_start(
        settings: dict[str, Any] | None = None, *, prefix: tuple[str, ...] = (), **options: Any
    ) -> "subprocess.CompletedProcess[str]":
        block = {"entrypoint": "app.py", "domain": "other", **(settings or {})}
        (tmp_path / "c.yaml").write_text(json.dumps({"faulty": {"resources_servers": {"faulty": block}}, **options}))
        command = [*prefix, sys.executable, "-m", "nemo_gym.cli.main", "env", "start", "--config", "c.yaml"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert not list(runtime.rglob("*.json"))
        return done

    return run_start


def check_error(done: "subprocess.CompletedProcess[str]", status: int, *words: str) -> None:
    """Check for one error with these words and no traceback of our code."""
    assert done.returncode == status, done.stderr
    assert re.search("^Error: (cell 0: )?faulty: ", done.stderr, re.MULTILINE)
    for word in words:
        assert word in done.stderr
    assert "/nemo_gym/" not in done.stderr  # no frame of ours: the author of the server cannot use it


def test_a_port_that_is_in_use(start: Any, write_server: Any, tmp_path: Path) -> None:
    """A port that the user chose is refused, not replaced."""
    write_server(tmp_path, "faulty", CELL)
    with listen("squatter", "127.0.0.1", 0) as squatter:
        port = squatter.getsockname()[1]

        done = start({"port": port})

    check_error(done, 3, f"faulty: port {port} on 127.0.0.1 is in use", "leave 'port' unset")


def test_an_entrypoint_that_is_missing(start: Any, write_server: Any, tmp_path: Path) -> None:
    """A typo in the configuration must be named with the path that was tried."""
    write_server(tmp_path, "faulty", CELL)

    done = start({"entrypoint": "main.py"})

    check_error(done, 1, "file not found", "resources_servers/faulty/main.py", "correct 'entrypoint'")


@pytest.mark.parametrize(
    ("source", "status", "words"),
    [
        (CELL.replace("async def verify(self", "async def verify(self self"), 3, "SyntaxError: invalid syntax"),
        (PROCESS.replace("async def verify(self", "async def verify(self self"), 3, "SyntaxError: invalid syntax"),
        ("    raise ValueError('no weights here')\n" + CELL, 3, "ValueError: no weights here"),
        ("    raise ValueError('no weights here')\n" + PROCESS, 3, "ValueError: no weights here"),
        ("    import no_such_module\n" + PROCESS, 3, "No module named 'no_such_module'"),
        ("    import sys; sys.exit(7)\n" + PROCESS, 3, "ended with status 7"),
    ],
)
def test_an_app_that_cannot_be_imported(
    start: Any, write_server: Any, tmp_path: Path, source: str, status: int, words: str
) -> None:
    """However it is hosted, the server is named with the original reason."""
    write_server(tmp_path, "faulty", source)

    done = start()

    check_error(done, status, "faulty", words)


class EmptyRegistry(BaseHTTPRequestHandler):
    """A package registry without packages."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def empty_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), EmptyRegistry)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    use_registry(monkeypatch, f"http://127.0.0.1:{server.server_port}/simple")
    yield
    server.shutdown()
    thread.join()
    server.server_close()


def use_registry(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for name in ("UV_INDEX_URL", "UV_DEFAULT_INDEX"):
        monkeypatch.setenv(name, url)
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")


@pytest.fixture
def _uv() -> None:
    try:
        uv_executable()
    except ConfigError:
        pytest.skip("uv is not installed")


@pytest.mark.usefixtures("_uv", "empty_registry")
def test_a_requirement_that_cannot_be_resolved(start: Any, write_server: Any, tmp_path: Path) -> None:
    """The error must name the requirement and the file to correct."""
    write_server(tmp_path, "faulty", CELL, "no-such-package-anywhere==1.0\n")

    done = start(uv_cache_dir=str(tmp_path / "cache"), uv_venv_dir=str(tmp_path / "venvs"))

    check_error(done, 3, "its requirements cannot be met", "no-such-package-anywhere", "correct its requirements.txt")


@pytest.mark.usefixtures("_uv")
def test_a_registry_that_cannot_be_reached(
    start: Any, write_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cluster nodes often have no network: the error must name the way around it."""
    use_registry(monkeypatch, "http://127.0.0.1:9/simple")
    write_server(tmp_path, "faulty", CELL, "no-such-package-anywhere==1.0\n")

    done = start(uv_cache_dir=str(tmp_path / "cache"), uv_venv_dir=str(tmp_path / "venvs"))

    check_error(done, 3, "the package registry cannot be reached", "gym env prefetch")


@pytest.mark.usefixtures("_uv")
def test_a_disk_that_is_full_while_a_venv_is_built(start: Any, write_server: Any, tmp_path: Path) -> None:
    """The installer's message is long; ours must name the cause. The disk is a real file system of 16 KB."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = f'mount -t tmpfs -o size=16k tmpfs {small} && exec "$@"'
    prefix = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mounted, "sh")
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow mounts")
    write_server(tmp_path, "faulty", CELL, "no-such-package-anywhere==1.0\n")

    done = start(prefix=prefix, uv_cache_dir=str(tmp_path / "cache"), uv_venv_dir=str(small))

    check_error(done, 3, "the disk is full", "free some space")
