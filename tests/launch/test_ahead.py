"""A zygote forked by the command: the same servers as from one that was started, and nothing of the command in them."""

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

from nemo_gym.forks import Child
from nemo_gym.launch.ahead import MOST_DESCRIPTORS, Ahead, _told, forked_ahead, take
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
usual = gc.get_threshold()
import aiohttp
from contextlib import nullcontext
from pathlib import Path
from omegaconf import OmegaConf
from nemo_gym.launch import ahead
from nemo_gym.launch.run import Run

root, how = Path(sys.argv[1]), sys.argv[2]

def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

async def main():
    os.environ["GIVEN_LATE"] = "yes"
    if how == "killed":
        os.kill(ahead._waiting[0].process.pid, 9)
        ahead._waiting[0].process.wait()
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
sys.stdout.write("said before: ")
with nullcontext() if how == "started" else ahead.forked_ahead(usual):
    asyncio.run(main())
"""


def played(folder: Path, how: str) -> dict[str, Any]:
    """What the command saw, with the zygote made this way; by then it has ended, and all it started too."""
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
    assert done.stdout.count("said before: ") == 1
    told: dict[str, Any] = json.loads(done.stdout.removeprefix("said before: "))
    assert eventually(lambda: all(map(is_gone, told["pids"])))
    return told


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "resources_servers" / "mirror"
    made.mkdir(parents=True)
    (made / "app.py").write_text(textwrap.dedent(MIRROR))
    (made / "requirements.txt").write_text("-e nemo-gym[dev] @ ../../\n")
    return tmp_path


def test_servers_of_a_forked_zygote_cannot_tell(folder: Path) -> None:
    """A server folder must run the same in a command and in a trainer, whatever the command had set for itself."""
    forked, started = played(folder, "forked"), played(folder, "started")

    assert (forked["forked"], started["forked"]) == (True, False)
    assert forked["seen"] == started["seen"]
    assert forked["seen"]["variable"] == "yes"
    assert forked["seen"]["session"]


@pytest.mark.parametrize("when", ["killed", "killed later"])
def test_a_zygote_that_is_lost_is_replaced(folder: Path, when: str) -> None:
    """Before it was needed, for environments may be built for minutes, or after: servers come, or come back."""
    told = played(folder, when)

    assert not told["forked"]
    assert told["seen"]["variable"] == "yes"


UNUSED = """
import gc, os, sys
from nemo_gym.launch import ahead
with ahead.forked_ahead(gc.get_threshold()):
    pid = ahead._waiting[0].process.pid
    if len(sys.argv) > 1:
        print(pid, flush=True)
        sys.stdin.read()
try:
    os.kill(pid, 0)
except ProcessLookupError:
    print("gone")
"""


def test_a_zygote_that_nobody_took_ends_with_the_command() -> None:
    """A configuration with a mistake in it must not cost a process."""
    done = subprocess.run([sys.executable, "-c", UNUSED], capture_output=True, text=True, timeout=60, check=False)

    assert (done.stdout, done.stderr) == ("gone\n", "")


def test_a_waiting_zygote_ends_when_the_command_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", UNUSED, "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None
        pid = int(command.stdout.readline())
        command.kill()

    assert eventually(lambda: is_gone(pid))


def test_what_servers_must_not_load_is_not_loaded_when_a_command_forks() -> None:
    """It would be in every server, and its threads and locks in every fork."""
    modules = "nemo_gym.cli.main, nemo_gym.cli.evaluate, nemo_gym.cli.starting, nemo_gym.launch.ahead"
    heavy = {"ray", "pandas", "wandb", "mlflow", "datasets", "openai"}
    code = f"import sys, {modules}; from nemo_gym.forks import is_alone; print({heavy} & {{*sys.modules}}, is_alone())"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout == "set() True\n", done.stderr


def test_a_process_with_threads_is_not_forked() -> None:
    """A fork of it would keep locks that nobody opens."""
    go = threading.Event()
    other = threading.Thread(target=go.wait)
    other.start()
    try:
        with forked_ahead((700, 10, 10)):
            assert take() is None
    finally:
        go.set()
        other.join()


def test_more_descriptors_than_a_message_takes_arrive_under_their_numbers() -> None:
    """A run of hundreds of servers has a listening socket for each."""
    made = [os.pipe() for _ in range(MOST_DESCRIPTORS + 5)]
    given = [reading for reading, _ in made]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ahead = Ahead(Child(0), ours)

    ahead.boot({"about": "x" * 100_000}, given, os.environ, seconds=10)
    found = _told(theirs)

    assert found is not None
    boot, moved = found
    assert boot == {"about": "x" * 100_000}
    assert [os.fstat(moved[number]).st_ino for number in given] == [os.fstat(number).st_ino for number in given]
    ours.close()
    assert _told(theirs) is None
    theirs.close()
    for descriptor in {*(end for pair in made for end in pair), *(moved[number] for number in given)}:
        os.close(descriptor)
