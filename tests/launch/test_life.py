"""Parallel runs, workers, and calls whose server dies. Real processes on loopback."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from omegaconf import DictConfig, OmegaConf

from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import ServerUnreachable
from nemo_gym.launch.hosted_instances import find_instances
from nemo_gym.launch.ports import OFFLINE_PORT, PortTaken, bind_listeners, listen
from nemo_gym.launch.run import Run
from nemo_gym.processes import child_pids
from nemo_gym.rollouts.attribution import classify_error
from nemo_gym.server_utils import ServerClient
from tests.processes import eventually, is_gone

SOURCE = """
import asyncio, os, signal
from fastapi import Request
from pydantic import PrivateAttr
from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
{before}

class Server(SimpleResourcesServer):
    {hosting}
    config: BaseResourcesServerConfig
    _seen: list = PrivateAttr(default_factory=list)

    def setup_webserver(self):
        app = super().setup_webserver()
        app.post("/who")(self.who)
        app.post("/wait")(self.wait)
        app.post("/remember")(self.remember)
        return app

    async def remember(self, request: Request) -> dict:
        self._seen.append(request.session["session_id"])
        return {{"calls": self._seen.count(request.session["session_id"])}}

    async def who(self) -> dict:
        return {{"pid": os.getpid()}}

    async def wait(self) -> dict:
        print("waiting", flush=True)
        await asyncio.sleep(60)

    async def verify(self, body):
        raise NotImplementedError

if __name__ == "__main__":
    Server.run_webserver()
"""


def write(root: Path, hosting: str = "", before: str = "") -> None:
    folder = root / "resources_servers" / "server"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "app.py").write_text(SOURCE.format(hosting=hosting, before=before))
    (folder / "requirements.txt").write_text("-e nemo-gym[dev] @ ../../\n")


def config_for(**settings: Any) -> DictConfig:
    block = {"entrypoint": "app.py", "domain": "other", "host": "127.0.0.1", "port": -1, **settings}
    head = {"host": "127.0.0.1", "port": OFFLINE_PORT}
    return OmegaConf.create({"head_server": head, "s": {"resources_servers": {"server": block}}})


async def test_workers_share_a_port_and_the_work(tmp_path: Path) -> None:
    """`num_workers` of the contract: several processes behind one address."""
    write(tmp_path)
    seen: set[int] = set()

    async with Run(config_for(num_workers=2), [tmp_path]) as run:
        async with asyncio.timeout(20):
            while len(seen) < 2:  # a new connection for every call: the kernel chooses the worker
                async with (
                    aiohttp.ClientSession() as session,
                    session.post(f"http://127.0.0.1:{run.instances[0].port}/who") as answer,
                ):
                    seen.add((await answer.json())["pid"])

    assert os.getpid() not in seen


def test_ten_runs_on_one_host_use_different_ports(tmp_path: Path) -> None:
    """Every port is bound before it is published, the default head port included."""
    write(tmp_path)
    bound, ports = [], []
    try:
        for _ in range(10):
            config = config_for()
            instances = find_instances({"s": OmegaConf.to_container(config.s)}, [tmp_path])
            bound.append(bind_listeners(config, instances, cells=2))
            ports += [config.head_server.port, config.s.resources_servers.server.port]
    finally:
        for listeners in bound:
            listeners.close()

    assert len(set(ports)) == 20


async def test_two_runs_serve_side_by_side(tmp_path: Path) -> None:
    """A second evaluation on one machine must not reach the servers of the first."""
    write(tmp_path, "HOSTING = 'cell'")

    async with Run(config_for(), [tmp_path]) as one, Run(config_for(), [tmp_path]) as two:
        pids = []
        for run in (one, two):
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"http://127.0.0.1:{run.instances[0].port}/who") as answer,
            ):
                pids.append((await answer.json())["pid"])

    assert pids[0] != pids[1]
    assert one.config.head_server.port != two.config.head_server.port


CLOSING = """
    async def close(self, session_id: str) -> None:
        await asyncio.sleep({seconds})
        open("closed", "a").write("closed ")
"""


@pytest.mark.parametrize("hosting", ["HOSTING = 'cell'", ""])
@pytest.mark.parametrize(("seconds", "is_closed"), [(0.3, True), (600, False)])
async def test_close_hooks_have_the_shutdown_timeout_although_a_request_is_in_flight(
    tmp_path: Path, hosting: str, seconds: float, is_closed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The request used up the time, so hooks never ran and left containers behind; a hook must not hang a run."""
    hook = CLOSING.format(seconds=seconds).replace('"closed"', repr(str(tmp_path / "closed")), 1)
    write(tmp_path, hosting + hook)
    is_waiting = asyncio.Event()
    loop = asyncio.get_running_loop()
    watch = lambda _, line: loop.call_soon_threadsafe(is_waiting.set) if "waiting" in line else None  # noqa: E731
    config = config_for()
    config.shutdown_timeout_seconds = 3

    async with asyncio.timeout(60), Run(config, [tmp_path], watch=watch) as run, aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{run.instances[0].port}"
        params = {"responses_create_params": {"input": "Go."}}
        (await session.post(f"{url}/seed_session", json=params)).raise_for_status()
        call = asyncio.create_task(session.post(f"{url}/wait"))
        await is_waiting.wait()
        await run.stop()
        call.cancel()

    assert (tmp_path / "closed").exists() == is_closed
    assert ("is killed (shutdown_timeout_seconds)" in caplog.text) == (not is_closed)


@pytest.mark.parametrize("hosting", ["HOSTING = 'cell'", ""])
async def test_a_call_in_flight_in_a_crashed_process_is_retryable(tmp_path: Path, hosting: str) -> None:
    """A crash costs an attempt, not the rollout."""
    write(tmp_path, hosting)
    is_waiting = asyncio.Event()
    loop = asyncio.get_running_loop()
    watch = lambda _, line: loop.call_soon_threadsafe(is_waiting.set) if "waiting" in line else None  # noqa: E731

    async with Run(config_for(), [tmp_path], watch=watch) as run:
        head = BaseServerConfig.model_validate(dict(run.config["head_server"]))
        client = ServerClient(head_server_config=head, global_config_dict=run.config)
        call = asyncio.create_task(client.post(server_name="s", url_path="/wait", json={}))
        async with asyncio.timeout(20):
            await is_waiting.wait()
        os.kill(run.server_instances()[0]["pid"], signal.SIGKILL)
        async with asyncio.timeout(20):
            (problem,) = await asyncio.gather(call, return_exceptions=True)

    assert isinstance(problem, ConnectionError)
    assert classify_error(problem, "agent", lambda _: "resources_servers").retryable


@pytest.mark.parametrize("hosting", ["HOSTING = 'cell'", ""])
@pytest.mark.parametrize("settings", [{}, {"num_cells": 2}], ids=["one cell", "two cells"])
async def test_a_session_ends_with_its_process(tmp_path: Path, hosting: str, settings: dict[str, int]) -> None:
    """The restarted server has none of the session's state: its tools and its verifier would answer wrongly."""
    write(tmp_path, hosting)
    config = OmegaConf.merge(config_for(), settings)

    async with Run(config, [tmp_path]) as run, asyncio.timeout(60):
        head = BaseServerConfig.model_validate(dict(run.config["head_server"]))
        client = ServerClient(head_server_config=head, global_config_dict=run.config)
        while True:  # with two cells, until the session is in the first one, whose process is listed
            first = await client.post(server_name="s", url_path="/remember")
            cookies = {name: cookie.value for name, cookie in first.cookies.items()}
            who = await client.post(server_name="s", url_path="/who", cookies=cookies)
            pid = run.server_instances()[0]["pid"]
            if (await who.json())["pid"] == pid:
                break
        os.kill(pid, signal.SIGKILL)
        while run.server_instances()[0]["pid"] in (None, pid):  # noqa: ASYNC110 - a run has no event for a restart
            await asyncio.sleep(0.01)
        with pytest.raises(ServerUnreachable, match="was restarted") as lost:
            await client.post(server_name="s", url_path="/remember", cookies=cookies)
        again = await client.post(server_name="s", url_path="/seed_session", json={}, cookies=cookies)

    assert lost.value.where == "s"
    assert again.status == 200


def test_a_second_interrupt_stops_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    """A server that ignores SIGTERM must not block the user."""
    write(tmp_path, before="signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    (tmp_path / "c.yaml").write_text(
        "s: {resources_servers: {server: {entrypoint: app.py, domain: other, host: 127.0.0.1}}}\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "nemo_gym.cli.main", "env", "start", "--config", "c.yaml"],
        cwd=tmp_path,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines: list[str] = []
    try:
        for line in process.stderr:
            lines.append(line)
            if "servers are ready" in line:
                process.send_signal(signal.SIGINT)
            if "interrupt again" in line:
                process.send_signal(signal.SIGINT)
        ended = process.wait(timeout=30)
    finally:
        process.kill()
        process.stderr.close()
        process.wait()

    port = int(next(line for line in lines if line.startswith("s: http")).split(":")[3].split()[0])
    assert ended == 130, lines
    assert is_free(port)
    assert not list(tmp_path.rglob("*.json"))


def is_free(port: int) -> bool:
    """Return True if a port becomes free; the kernel may need a moment."""
    for _ in range(500):
        try:
            listen("probe", "127.0.0.1", port).close()
        except PortTaken:
            continue
        return True
    return False


STARTS_DAEMONS = """
import subprocess, sys
from pathlib import Path

loop = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
daemons = [subprocess.Popen([sys.executable, "-c", loop], start_new_session=True) for _ in range(2)]
double_fork = (
    "import subprocess, sys\\nargv = [sys.executable, '-c', sys.argv[1]]\\n"
    "print(subprocess.Popen(argv, start_new_session=True, stdout=subprocess.DEVNULL, env={}).pid)"
)
orphan = subprocess.check_output([sys.executable, "-c", double_fork, loop], text=True)
Path(f"../../daemons-{os.getpid()}").write_text(" ".join([str(os.getpid()), *(str(d.pid) for d in daemons), orphan]))
"""

RUN_UNTIL_STOPPED = """
import asyncio, sys
from pathlib import Path
from tests.launch.test_life import Run, config_for

async def main():
    async with Run(config_for(hosting="process"), [Path(sys.argv[1])]):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "victims", ["none", "command", "server", "zygote", "guard", "zygote guard", "command guard zygote", "all"]
)
def test_processes_in_their_own_session_end_with_the_run(tmp_path: Path, victims: str) -> None:
    """A server starts a browser or a database; nothing else would end it after the run, however the run ended."""
    write(tmp_path, before=STARTS_DAEMONS)
    command = [sys.executable, "-c", RUN_UNTIL_STOPPED, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        server, *daemons = map(int, next(tmp_path.glob("daemons-*")).read_text().split())
        assert len(daemons) == 3 and not any(map(is_gone, daemons))
        (guard,) = child_pids(process.pid)
        (zygote,) = child_pids(guard)
        pids = {"command": process.pid, "server": server, "zygote": zygote, "guard": guard}
        chosen = {"none": [], "all": list(pids)}.get(victims, victims.split())
        for pid in [pids[name] for name in chosen]:
            os.kill(pid, signal.SIGSTOP)  # none may end the others' children before its own end
        for pid in [pids[name] for name in chosen]:
            os.kill(pid, signal.SIGKILL)
        if chosen == ["zygote", "guard"]:
            assert eventually(lambda: all(map(is_gone, daemons)), within=20)  # not only when the run ends
        if "command" not in chosen:
            process.stdin.write("\n")
            process.stdin.flush()
        process.wait(60)
        assert eventually(lambda: all(map(is_gone, [server, zygote, guard, *daemons])), within=20)
