"""Servers start, are isolated, are restarted and leave no process. Real processes on loopback."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from omegaconf import DictConfig, OmegaConf

from nemo_gym.launch.ports import PortTaken, listen
from nemo_gym.launch.run import Run
from nemo_gym.launch.supervisor import ServerDidNotStart
from tests.processes import is_gone, wait_until

pytestmark = pytest.mark.asyncio

COUNTER = """
    from fastapi import Request
    from nemo_gym.base_resources_server import BaseResourcesServerConfig, BaseVerifyResponse, SimpleResourcesServer
    from nemo_gym.server_utils import SESSION_ID_KEY

    COUNTS = {{}}

    class Counter(SimpleResourcesServer):
        {hosting}
        config: BaseResourcesServerConfig

        def setup_webserver(self):
            app = super().setup_webserver()
            app.post("/add")(self.add)
            return app

        async def add(self, request: Request) -> dict:
            session = request.session[SESSION_ID_KEY]
            COUNTS[session] = COUNTS.get(session, 0) + 1
            return {{"count": COUNTS[session], "session": session}}

        async def verify(self, body):
            raise NotImplementedError

    if __name__ == "__main__":
        Counter.run_webserver()
"""


def write_folder(root: Path, name: str, source: str, **files: str) -> Path:
    folder = root / "resources_servers" / name
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "app.py").write_text(textwrap.dedent(source))
    (folder / "requirements.txt").write_text("-e nemo-gym[dev] @ ../../\n")
    for file, text in files.items():
        (folder / f"{file}.py").write_text(textwrap.dedent(text))
    return folder


def config_for(**implementations: str) -> DictConfig:
    blocks: dict[str, Any] = {
        name: {
            "resources_servers": {folder: {"entrypoint": "app.py", "domain": "other", "host": "127.0.0.1", "port": -1}}
        }
        for name, folder in implementations.items()
    }
    return OmegaConf.create({"head_server": {"host": "127.0.0.1", "port": 0}, **blocks})


def url(run: Run, name: str) -> str:
    instance = next(instance for instance in run.instances if instance.name == name)
    return f"http://{instance.host}:{instance.port}"


async def call_add(session: aiohttp.ClientSession, run: Run, name: str) -> dict[str, Any]:
    async with session.post(f"{url(run, name)}/add") as answer:
        return dict(await answer.json())


async def test_folders_with_equal_module_names_and_globals_do_not_interfere(tmp_path: Path) -> None:
    """Two authors both wrote utils.py and changed the environment and the working directory."""
    source = """
        import os
        from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
        import utils

        os.environ["WHO"] = utils.NAME
        import builtins
        assert not hasattr(builtins, "claimed"), "another server was here"
        builtins.claimed = utils.NAME

        class Mine(SimpleResourcesServer):
            config: BaseResourcesServerConfig

            def setup_webserver(self):
                app = super().setup_webserver()
                app.get("/who")(self.who)
                return app

            async def who(self) -> dict:
                here = os.path.basename(os.getcwd())
                return {"utils": utils.NAME, "env": os.environ["WHO"], "cwd": here, "file": open("note.txt").read()}

            async def verify(self, body):
                raise NotImplementedError

        if __name__ == "__main__":
            Mine.run_webserver()
    """
    for name in ("left", "right"):
        folder = write_folder(tmp_path, name, source, utils=f"NAME = '{name}'")
        (folder / "note.txt").write_text(name)

    async with Run(config_for(a="left", b="right"), [tmp_path]) as run, aiohttp.ClientSession() as session:
        answers = []
        for name in ("a", "b"):
            async with session.get(f"{url(run, name)}/who") as answer:
                answers.append(await answer.json())

    assert answers == [{"utils": n, "env": n, "cwd": n, "file": n} for n in ("left", "right")]


async def test_a_session_is_found_whichever_cell_accepts_the_call(tmp_path: Path) -> None:
    """Four cells share a port; a caller's state is in one of them, and every call must reach it."""
    write_folder(tmp_path, "counter", COUNTER.format(hosting='HOSTING = "cell"'))
    sys.path.insert(0, str(tmp_path))
    callers, calls = 24, 12

    async def count(address: str) -> list[int]:
        # A new connection for every call, so that the kernel may choose another cell each time.
        jar: dict[str, str] = {}
        seen = []
        for _ in range(calls):
            async with (
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True), cookies=jar) as session,
                session.post(f"{address}/add") as answer,
            ):
                assert answer.status == 200, await answer.text()
                jar = {name: cookie.value for name, cookie in answer.cookies.items()}
                seen.append((await answer.json())["count"])
        return seen

    os.environ["NEMO_GYM_EXTRA_ROOTS"] = str(tmp_path)
    try:
        async with Run(config_for(c="counter"), [tmp_path], cells=4) as run:
            counts = await asyncio.gather(*[count(url(run, "c")) for _ in range(callers)])
    finally:
        del os.environ["NEMO_GYM_EXTRA_ROOTS"]
        sys.path.remove(str(tmp_path))

    assert counts == [list(range(1, calls + 1))] * callers


async def test_a_forged_session_is_a_new_session(tmp_path: Path) -> None:
    """A cookie that names a cell must be signed, or any client could read another one's state."""
    write_folder(tmp_path, "counter", COUNTER.format(hosting=""))

    async with Run(config_for(c="counter"), [tmp_path]) as run:
        async with aiohttp.ClientSession() as session:
            first = await call_add(session, run, "c")
        forged = {"Counter___c": "eyJzZXNzaW9uX2lkIjoieCJ9.forged"}
        async with aiohttp.ClientSession(cookies=forged) as session:
            second = await call_add(session, run, "c")

    assert first["session"] != second["session"]
    assert second["count"] == 1


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import no_such_module\n", "No module named 'no_such_module'"),
        ("def broken(:\n", "SyntaxError"),
        ("raise RuntimeError('at import')\n", "at import"),
        ("import os\nos._exit(7)\n", "it ended with status 7"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", "it was killed"),
    ],
)
async def test_a_server_that_does_not_start_is_named_with_the_reason(tmp_path: Path, source: str, words: str) -> None:
    """The message must make reading the log unnecessary."""
    write_folder(tmp_path, "broken", source)

    with pytest.raises(ServerDidNotStart) as raised:
        async with Run(config_for(b="broken"), [tmp_path]):
            pass

    assert raised.value.where == "b"
    assert words in str(raised.value)


async def test_a_crashed_server_is_restarted(tmp_path: Path) -> None:
    """One segfault must not end a run of many hours."""
    write_folder(tmp_path, "counter", COUNTER.format(hosting=""))

    async with Run(config_for(c="counter"), [tmp_path]) as run, aiohttp.ClientSession() as session:
        before = run.server_instances()[0]["pid"]
        os.kill(before, signal.SIGKILL)
        async with asyncio.timeout(20):
            while run.server_instances()[0]["pid"] in (before, None):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            # The socket stayed open throughout, so a caller waits instead of being refused.
            answer = await call_add(session, run, "c")

        assert answer["count"] == 1


async def test_a_killed_zygote_is_replaced_and_its_servers_are_restarted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The out-of-memory killer chooses any process; a run without zygote must not only look alive."""
    write_folder(tmp_path, "cellular", COUNTER.format(hosting="HOSTING = 'cell'"))
    write_folder(tmp_path, "lonely", COUNTER.format(hosting=""))
    async with Run(config_for(a="cellular", b="lonely"), [tmp_path]) as run, aiohttp.ClientSession() as session:
        before = {server["pid"] for server in run.server_instances()}
        assert run._zygote._process is not None
        zygote = run._zygote._process.pid

        os.kill(zygote, signal.SIGKILL)
        await wait_until(lambda: {unit.pid for unit in run._supervisor.units}.isdisjoint({None, *before}))
        answers = [await call_add_when_up(session, run, name) for name in ("a", "b")]
        after = {server["pid"] for server in run.server_instances()}

    assert [answer["count"] for answer in answers] == [1, 1]
    assert not [pid for pid in {zygote, *before, *after} if not is_gone(pid)]
    assert "the process that starts servers ended; the servers it had started end with it" in caplog.messages


async def call_add_when_up(session: aiohttp.ClientSession, run: Run, name: str) -> dict[str, Any]:
    """Return the first reply of a server that is being restarted."""
    end = time.monotonic() + 20
    while True:
        try:
            return await call_add(session, run, name)
        except aiohttp.ClientError:
            assert time.monotonic() < end
            await asyncio.sleep(0.02)


async def test_a_zygote_that_keeps_dying_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Restarts end, and callers that poll the run see it."""
    monkeypatch.setattr("nemo_gym.launch.spawners.MAX_ZYGOTES", 1)
    write_folder(tmp_path, "lonely", COUNTER.format(hosting=""))
    async with Run(config_for(b="lonely"), [tmp_path]) as run:
        assert run._zygote._process is not None

        os.kill(run._zygote._process.pid, signal.SIGKILL)
        await wait_until(lambda: run.lost_processes() == ["b"])
        assert run.is_lost


async def test_a_server_with_workers_is_listed_with_the_process_of_a_worker(tmp_path: Path) -> None:
    """`gym env status` shows the process; that of a cell of the same run would be the wrong one to end or inspect."""
    write_folder(tmp_path, "shared", COUNTER.format(hosting='HOSTING = "cell"'))
    write_folder(tmp_path, "alone", COUNTER.format(hosting=""))
    config = config_for(shared="shared", alone="alone")
    config.alone.resources_servers.alone.num_workers = 2
    async with Run(config, [tmp_path]) as run:
        pids = {entry["process_name"]: entry["pid"] for entry in run.server_instances()}
    assert None not in pids.values()
    assert pids["alone"] != pids["shared"]


async def test_a_taken_port_is_reported_before_anything_starts(tmp_path: Path) -> None:
    """A port that the user chose is not silently replaced."""
    write_folder(tmp_path, "counter", COUNTER.format(hosting=""))
    config = config_for(c="counter")
    with listen("squatter", "127.0.0.1", 0) as squatter:
        port = squatter.getsockname()[1]
        config.c.resources_servers.counter.port = port

        with pytest.raises(OSError, match=f"c: port {port} on 127.0.0.1 is in use"):
            async with Run(config, [tmp_path]):
                pass


def proc(pid: int, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()


async def test_no_secret_shows_in_a_process_list(tmp_path: Path) -> None:
    """Every user of the machine can read command lines, and the owner's other programs the environment."""
    write_folder(tmp_path, "counter", COUNTER.format(hosting=""))
    config = config_for(c="counter")
    config.c.resources_servers.counter.api_key = "sk-never-shown"

    async with Run(config, [tmp_path]) as run:
        pids = [os.getpid(), run.server_instances()[0]["pid"]]
        parents = [int(proc(pids[1], "stat").rsplit(b")", 1)[1].split()[1])]
        shown = [proc(pid, name) for pid in pids + parents for name in ("cmdline", "environ")]

    assert parents[0] != pids[0]
    assert not [text for text in shown if b"sk-never-shown" in text]


async def test_no_process_is_left_when_the_parent_is_killed(tmp_path: Path) -> None:
    """`kill -9` of the command must not leave servers holding ports."""
    write_folder(tmp_path, "counter", COUNTER.format(hosting=""))
    script = f"""
        import asyncio, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_run import Path, Run, config_for

        async def main():
            async with Run(config_for(c="counter"), [Path({str(tmp_path)!r})]) as run:
                print(run.instances[0].port, run.server_instances()[0]["pid"], flush=True)
                await asyncio.sleep(600)

        asyncio.run(main())
    """
    parent = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    port, pid = map(int, (await asyncio.to_thread(parent.stdout.readline)).split())

    parent.kill()
    parent.wait()
    parent.stdout.close()

    await wait_until(lambda: is_gone(pid) and is_free(port))


def is_free(port: int) -> bool:
    try:
        listen("probe", "127.0.0.1", port).close()
    except PortTaken:
        return False
    return True
