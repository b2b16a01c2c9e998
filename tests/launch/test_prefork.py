"""A preforked zygote gives the same servers as a started one, and nothing of the command reaches them."""

import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.launch import prefork
from nemo_gym.launch.prefork import ZygoteHandle, preforked_zygote
from nemo_gym.launch.zygote import MAX_DESCRIPTORS, ZygoteSpec, receive_boot
from nemo_gym.processes import ForkedChild
from tests.processes import eventually, is_gone

MIRROR = """
    import gc, logging, os, signal, sys
    from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer

    def kinds_of_files():
        kinds = set()
        for name in os.listdir("/proc/self/fd"):
            try:
                kinds.add(os.readlink(f"/proc/self/fd/{name}").partition(":")[0])
            except OSError:  # the one that listed them
                continue
        return sorted(kinds)

    AT_START = {
        "argv": sys.argv,
        "main": sys.modules["__main__"].__file__,
        "gc": [gc.get_threshold(), gc.isenabled()],
        "handlers": [str(handler) for handler in logging.getLogger().handlers],
        "levels": [logging.getLogger().level, logging.getLogger("nemo_gym").level],
        "input": sys.stdin.read(),
        "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "variable": os.environ.get("GIVEN_LATE"),
        "cwd": os.getcwd(),
        "path": [os.getcwd() in sys.path, os.environ["STARTED_IN"] in sys.path],
        "files": kinds_of_files(),
        "session": os.getsid(0) != int(os.environ["COMMAND_SESSION"]),
    }

    class Mirror(SimpleResourcesServer):
        config: BaseResourcesServerConfig

        def setup_webserver(self):
            app = super().setup_webserver()
            app.get("/mirror")(lambda: AT_START)
            return app

        async def verify(self, body):
            raise NotImplementedError

    if __name__ == "__main__":
        Mirror.run_webserver()
"""

COMMAND = """
import asyncio, gc, json, logging, os, sys
thresholds = gc.get_threshold()
import aiohttp
from contextlib import nullcontext
from pathlib import Path
from omegaconf import OmegaConf
from nemo_gym.launch import prefork
from nemo_gym.launch.run import Run

root, how = Path(sys.argv[1]), sys.argv[2]

def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

async def main():
    os.environ["GIVEN_LATE"] = "yes"
    if how == "killed":
        os.kill(prefork._unclaimed[0].process.pid, 9)
        prefork._unclaimed[0].process.wait()
    mirror = {"entrypoint": "app.py", "domain": "other", "host": "127.0.0.1", "port": -1}
    blocks = {f"m{n}": {"resources_servers": {"mirror": mirror}} for n in range(3)}
    config = OmegaConf.create({"head_server": {"host": "127.0.0.1", "port": 0}, **blocks})
    async with Run(config, [root]) as run, aiohttp.ClientSession() as session:
        servers = run.server_instances()
        if how == "killed later":
            os.kill(parent(servers[0]["pid"]), 9)
            before = {None, *(server["pid"] for server in servers)}
            async with asyncio.timeout(60):
                while before & {unit.pid for unit in run._supervisor.units}:
                    await asyncio.sleep(0.01)
                await asyncio.gather(*(unit.ready for unit in run._supervisor.units))
            servers = run.server_instances()
        async with session.get(servers[1]["url"] + "/mirror") as answer:
            seen = await answer.json()
        zygote = parent(servers[0]["pid"])
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (os.getpid(), zygote)]
        pids = [zygote, *(server["pid"] for server in servers)]
    print(json.dumps({"pids": pids, "forked": commands[0] == commands[1], "seen": seen}))

os.environ |= {"STARTED_IN": os.getcwd(), "COMMAND_SESSION": str(os.getsid(0))}
logging.basicConfig(level=logging.DEBUG)
logging.getLogger("nemo_gym").setLevel(logging.DEBUG)
gc.set_threshold(12_345, 1, 1)
sys.stdout.write("before: ")
with nullcontext() if how == "started" else prefork.preforked_zygote(thresholds):
    asyncio.run(main())
"""


def run_command(folder: Path, how: str) -> dict[str, Any]:
    """Return what the command saw, after it and every process it started have ended; `how` is how it got a zygote."""
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, str(folder), how],
        cwd=folder,
        input="typed at the command",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("before: ") == 1
    report: dict[str, Any] = json.loads(done.stdout.removeprefix("before: "))
    assert eventually(lambda: all(map(is_gone, report["pids"])))
    return report


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    server = tmp_path / "resources_servers" / "mirror"
    server.mkdir(parents=True)
    (server / "app.py").write_text(textwrap.dedent(MIRROR))
    (server / "requirements.txt").write_text("-e nemo-gym[dev] @ ../../\n")
    return tmp_path


def test_servers_of_a_preforked_zygote_see_no_difference(folder: Path) -> None:
    """A server folder must run the same in a command and in a trainer, whatever the command had set for itself."""
    forked, started = run_command(folder, "forked"), run_command(folder, "started")

    assert (forked["forked"], started["forked"]) == (True, False)
    assert forked["seen"] == started["seen"]
    assert forked["seen"]["variable"] == "yes"
    assert forked["seen"]["session"]


@pytest.mark.parametrize("when", ["killed", "killed later"])
def test_a_zygote_that_is_lost_is_replaced(folder: Path, when: str) -> None:
    """It may die before it is needed, because building a venv takes minutes, or later: the servers must run."""
    report = run_command(folder, when)

    assert not report["forked"]
    assert report["seen"]["variable"] == "yes"


UNUSED = """
import gc, os, sys
from nemo_gym.launch import prefork
with prefork.preforked_zygote(gc.get_threshold()):
    pid = prefork._unclaimed[0].process.pid
    if len(sys.argv) > 1:
        print(pid, flush=True)
        sys.stdin.read()
try:
    os.kill(pid, 0)
except ProcessLookupError:
    print("gone")
"""


def test_an_unclaimed_zygote_ends_with_the_command() -> None:
    """A mistake in the configuration must not leave a process."""
    done = subprocess.run([sys.executable, "-c", UNUSED], capture_output=True, text=True, timeout=60, check=False)

    assert (done.stdout, done.stderr) == ("gone\n", "")


def test_a_waiting_zygote_ends_when_the_command_is_killed() -> None:
    """`kill -9` while a venv is being built must not leave a process."""
    with subprocess.Popen(
        [sys.executable, "-c", UNUSED, "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None
        pid = int(command.stdout.readline())
        command.kill()

    assert eventually(lambda: is_gone(pid))


def test_a_command_that_forks_has_not_loaded_heavy_modules() -> None:
    """They would be in every server, and their threads and locks in every fork."""
    modules = "nemo_gym.cli.main, nemo_gym.cli.shared.collection, nemo_gym.cli.shared.servers, nemo_gym.launch.prefork"
    heavy = {"ray", "pandas", "wandb", "mlflow", "datasets", "openai"}
    code = f"import sys, {modules}; from nemo_gym.processes import has_single_thread as alone"
    code += f"; print({heavy} & {{*sys.modules}}, alone())"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout == "set() True\n", done.stderr


def test_a_process_with_threads_is_not_forked() -> None:
    """A fork would copy locks that no thread releases."""
    go = threading.Event()
    other = threading.Thread(target=go.wait)
    other.start()
    try:
        with preforked_zygote((700, 10, 10)):
            assert not prefork._unclaimed
    finally:
        go.set()
        other.join()


def test_more_descriptors_than_fit_into_one_message_arrive_under_their_numbers() -> None:
    """A run of hundreds of servers has a listening socket for each."""
    pipes = [os.pipe() for _ in range(MAX_DESCRIPTORS + 5)]
    readers = [reader for reader, _ in pipes]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    handle = ZygoteHandle(ForkedChild(0), ours)

    handle.boot(ZygoteSpec({"about": "x" * 100_000}, readers, os.environ), seconds=10)
    message = receive_boot(theirs)

    assert message is not None
    boot, numbers = message
    assert boot == {"about": "x" * 100_000}
    assert [os.fstat(numbers[fd]).st_ino for fd in readers] == [os.fstat(fd).st_ino for fd in readers]
    ours.close()
    assert receive_boot(theirs) is None
    theirs.close()
    for descriptor in {*(end for pipe in pipes for end in pipe), *(numbers[fd] for fd in readers)}:
        os.close(descriptor)
