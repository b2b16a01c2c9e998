"""Serving: options, workers, limits, prefixes, and dying with the parent."""

import io
import os
import resource
import select
import socket
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from nemo_gym.errors import ConfigError
from nemo_gym.serve import webserver
from nemo_gym.transport.http_sessions import raise_open_files_limit


def test_uvicorn_is_told_what_the_configuration_says():
    """A setting that does not reach uvicorn has no effect and no error."""
    options = webserver.uvicorn_options({"uvicorn_logging_show_200_ok": True, "uvicorn_timeout_worker_healthcheck": 99})

    assert options["access_log"] is True
    assert options["timeout_worker_healthcheck"] == 99
    assert options["timeout_keep_alive"] == 30
    assert (options["loop"], options["http"]) == ("uvloop", "nemo_gym.serve.access:CheckedProtocol")
    assert webserver.uvicorn_options({})["access_log"] is False


def test_the_first_bytes_of_a_stream_leave_at_once():
    """Without the protocol in the socket asyncio does not switch off Nagle's algorithm, which delays them by 40 ms."""
    with webserver.listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_workers_import_the_entrypoint_and_share_one_secret(monkeypatch):
    """Any worker must know a session that another one began."""
    called: dict[str, object] = {}
    for name in (
        webserver.WORKER_ENV_VAR,
        webserver.ENTRYPOINT_ENV_VAR,
        webserver.NUM_WORKERS_ENV_VAR,
        "NEMO_GYM_SESSION_SECRET",
    ):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr("uvicorn.run", lambda app, **options: called.update(options, app=app))

    webserver.serve_in_workers("resources_servers/sums/app.py", 3, {"port": 7})

    assert called == {"app": "resources_servers.sums.app:app", "workers": 3, "port": 7}
    assert os.environ["NEMO_GYM_SESSION_SECRET"]
    assert webserver.is_fastapi_worker()
    assert webserver.is_fastapi_entrypoint("/somewhere/resources_servers/sums/app.py")
    assert not webserver.is_fastapi_entrypoint("/somewhere/resources_servers/other/app.py")


def test_a_file_is_no_entrypoint_outside_a_worker(monkeypatch):
    """Importing an app for its classes, as tests do, must not start a server."""
    monkeypatch.delenv(webserver.WORKER_ENV_VAR, raising=False)
    monkeypatch.setenv(webserver.ENTRYPOINT_ENV_VAR, "a/b/app.py")

    assert not webserver.is_fastapi_entrypoint("/x/a/b/app.py")


def test_the_open_files_limit_is_raised_but_never_lowered():
    """Every open call needs a descriptor; a lower limit than before would fail large runs."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    raise_open_files_limit(limit=16)

    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
    raise_open_files_limit(limit=10**9)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= before[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("writes", "expected"),
    [
        (["one\ntwo\n"], "(env) one\n(env) two\n"),
        (["on", "e\n", "two"], "(env) one\n(env) two"),
        (["\n", "x\n\ny"], "\n(env) x\n\n(env) y"),
        ([""], ""),
    ],
)
def test_every_line_begins_with_the_instance(writes, expected):
    """Fifty servers write to one terminal."""
    target = io.StringIO()
    stream = webserver.PrefixedStream(target, "(env) ")
    for text in writes:
        assert stream.write(text) == len(text)

    assert target.getvalue() == expected
    assert not stream.closed


def test_prefixing_twice_prefixes_once(monkeypatch):
    """A server that is started through two layers would repeat its name on every line."""
    target = io.StringIO()
    monkeypatch.setattr(sys, "stdout", target)
    monkeypatch.setattr(sys, "stderr", io.StringIO())

    webserver.prefix_output("env")
    webserver.prefix_output("env")
    sys.stdout.write("x\n")

    assert target.getvalue() == "(env) x\n"


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
"""
CHILD = """
import sys, time
import signal
from nemo_gym.processes import die_with_parent
assert die_with_parent(signal.SIGTERM)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel call is Linux's")
def test_a_server_ends_when_its_parent_dies():
    """Otherwise every crash of the parent leaves ports taken."""
    output = subprocess.run(
        [sys.executable, "-c", PARENT, CHILD], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    child = int(output)

    descriptor = None
    try:
        descriptor = os.pidfd_open(child)
        assert select.select([descriptor], [], [], 20)[0], "the child outlived its parent"
    except ProcessLookupError:
        pass  # already gone: just as good
    finally:
        if descriptor is not None:
            os.close(descriptor)


def test_ray_is_asked_for_by_name_when_it_is_missing(monkeypatch):
    """A bare ImportError would not say which extra to install."""
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(ConfigError, match=r"nemo-gym\[ray\]"):
        webserver.join_ray(OmegaConf.create({}))


def test_a_ray_cluster_that_cannot_be_joined_is_reported(monkeypatch):
    """Ray finds the clusters of other users of the machine; one of another Python refuses with a long traceback."""

    class OtherVersion:
        def is_initialized(self) -> bool:
            return False

        def init(self, address, ignore_reinit_error):
            raise RuntimeError("Version mismatch:\n Python: 3.11")

    monkeypatch.setitem(sys.modules, "ray", OtherVersion())

    with pytest.raises(ConfigError, match=r"Version mismatch: Python: 3\.11\n.*RAY_ADDRESS=local"):
        webserver.join_ray(OmegaConf.create({}))


def test_ray_joins_the_configured_cluster_or_writes_its_own_address(monkeypatch):
    """Servers that each start a cluster would not share resources."""

    class FakeRay:
        gcs_address = "10.0.0.1:6379"

        def __init__(self) -> None:
            self.joined: list[str | None] = []

        def is_initialized(self) -> bool:
            return False

        def init(self, address, ignore_reinit_error):
            self.joined.append(address)

        def get_runtime_context(self):
            return self

    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    config = OmegaConf.create({})

    webserver.join_ray(config)
    webserver.join_ray(config)

    assert ray.joined == [None, "10.0.0.1:6379"]
