"""Cells that block or crash are restarted, their culprit is named and quarantined. Real processes on loopback."""

import asyncio
import os
import socket
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import DeadlineExceeded, GymError, ServerUnreachable
from nemo_gym.launch import supervisor
from nemo_gym.launch.ports import OFFLINE_PORT
from nemo_gym.launch.run import Run
from nemo_gym.server_utils import ServerClient, get_response_json
from nemo_gym.transport import call_timing
from tests.processes import wait_until

pytestmark = pytest.mark.asyncio

SOURCE = """
    import asyncio, itertools, os, re, time
    from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer

    class Server(SimpleResourcesServer):
        HOSTING = "cell"
        config: BaseResourcesServerConfig

        def setup_webserver(self):
            app = super().setup_webserver()
            for tool in (self.who, self.wait, self.sleep, self.convolve, self.pattern, self.die, self.burst):
                app.post(f"/{tool.__name__}")(tool)
            return app

        async def who(self) -> dict:
            return {"pid": os.getpid()}

        async def wait(self) -> dict:
            print("waiting", flush=True)
            await asyncio.sleep(600)

        async def sleep(self) -> dict:
            await asyncio.sleep(0.02)
            time.sleep(600)

        async def convolve(self) -> dict:
            all(itertools.repeat(1))  # holds the interpreter lock and checks no signal

        async def pattern(self) -> dict:
            await asyncio.to_thread(re.fullmatch, "(x*)*y", "x" * 40)

        async def die(self) -> dict:
            os._exit(5)

        async def burst(self) -> dict:
            time.sleep(0.4)
            return {"pid": os.getpid()}

        async def verify(self, body):
            raise NotImplementedError

    if __name__ == "__main__":
        Server.run_webserver()
"""


def config_for(root: Path, hosting: str = "cell", **keys: Any) -> DictConfig:
    """Write a server folder and return a configuration with two instances of it, `bad` and `fine`."""
    folder = root / "resources_servers" / "server"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "app.py").write_text(textwrap.dedent(SOURCE))
    (folder / "requirements.txt").write_text("-e nemo-gym[dev] @ ../../\n")
    common = {"entrypoint": "app.py", "domain": "other", "host": "127.0.0.1", "port": -1}
    return OmegaConf.create(
        {
            "head_server": {"host": "127.0.0.1", "port": OFFLINE_PORT},
            "bad": {"resources_servers": {"server": {**common, "hosting": hosting}}},
            "fine": {"resources_servers": {"server": {**common, "hosting": "cell"}}},
            **keys,
        }
    )


class Caller:
    """Calls the servers of a run and knows when a call waits in its handler."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def watch(self, _name: str, line: str) -> None:
        if "waiting" in line:
            self._loop.call_soon_threadsafe(self.waiting.set)

    async def call(self, run: Run, name: str, path: str, rollout: tuple[int, int] | None = None) -> dict[str, Any]:
        head = BaseServerConfig.model_validate(dict(run.config["head_server"]))
        client = ServerClient(head_server_config=head, global_config_dict=run.config)
        call_timing.set_current_rollout(rollout)
        async with asyncio.timeout(60):
            response = await client.post(server_name=name, url_path=path, json={})
            answer = await get_response_json(response)
            assert isinstance(answer, dict), answer
            return answer

    async def failure(self, run: Run, name: str, path: str, rollout: tuple[int, int] | None = None) -> GymError:
        with pytest.raises(GymError) as problem:
            await self.call(run, name, path, rollout)
        return problem.value


@pytest.mark.parametrize("path", ["/sleep", "/convolve", "/pattern"])
async def test_a_blocked_cell_is_restarted_and_every_lost_call_names_the_culprit(tmp_path: Path, path: str) -> None:
    """A thread of the process could not notice the last two: they never release the interpreter lock."""
    caller = Caller()
    config = config_for(tmp_path, blocked_cell_timeout_seconds=1.0)

    async with Run(config, [tmp_path], watch=caller.watch) as run:
        before = await caller.call(run, "fine", "/who")
        innocent = asyncio.create_task(caller.failure(run, "fine", "/wait"))
        await caller.waiting.wait()
        problem = await caller.failure(run, "bad", path, (7, 1))
        others = await innocent
        after = await caller.call(run, "fine", "/who")
        culprits = [crash.handler.rollout for crash in await run.find_crashes("bad", 0.0) if crash.handler]

    assert isinstance(problem, ServerUnreachable) and isinstance(others, ServerUnreachable)
    assert (problem.where, others.where) == ("bad", "bad")
    assert "its event loop did not run for" in str(others)
    assert before != after
    assert culprits in ([(7, 1)], [None] if path == "/pattern" else [(7, 1)])  # unknown if only a thread runs


@pytest.mark.parametrize("path", ["/die", "/sleep"])
async def test_the_culprit_of_a_crash_is_known_over_http(tmp_path: Path, path: str) -> None:
    """Calls to a server in a separate process use HTTP; without the rollout, all rollouts in flight would pay."""
    caller = Caller()
    config = config_for(tmp_path, "process", blocked_cell_timeout_seconds=0.15)

    async with Run(config, [tmp_path], watch=caller.watch) as run:
        innocent = asyncio.create_task(caller.failure(run, "bad", "/wait", (8, 0)))
        await caller.waiting.wait()
        begin = time.monotonic()
        culprit = asyncio.create_task(caller.failure(run, "bad", path, (7, 1)))
        if path == "/sleep":
            await wait_until(lambda: run.blocking_handler("bad"))
        [crash] = await run.find_crashes("bad", begin)  # waits for the end of a blocked process
        problems = [await innocent, await culprit]
        later, others = await run.find_crashes("bad", time.monotonic()), await run.find_crashes("fine", begin)

    assert f"bad: POST {path} of rollout 7-1 was running" in str(crash)
    assert crash.handler is not None and crash.handler.rollout == (7, 1)
    assert [problem.where for problem in problems] == ["bad", "bad"]
    assert (later, others) == ([], [])


async def test_a_handler_that_blocks_for_a_moment_is_left_alone(tmp_path: Path) -> None:
    """Ending a cell costs every rollout in it."""
    caller = Caller()

    async with Run(config_for(tmp_path, blocked_cell_timeout_seconds=2.0), [tmp_path]) as run:
        before = await caller.call(run, "fine", "/who")
        await caller.call(run, "bad", "/burst")
        after = await caller.call(run, "fine", "/who")

    assert before == after


async def test_the_request_timeout_bounds_a_blocked_cell(tmp_path: Path) -> None:
    """A call may never take longer than `request_timeout_seconds`, so a cell must not stand still for longer."""
    caller = Caller()

    async with Run(config_for(tmp_path, request_timeout_seconds=1.0), [tmp_path]) as run:
        problem = await caller.failure(run, "bad", "/sleep")

    assert isinstance(problem, ServerUnreachable | DeadlineExceeded)
    assert problem.where == "bad"


async def test_a_server_that_ends_its_cell_repeatedly_gets_a_separate_process(tmp_path: Path) -> None:
    """The other servers must not be restarted for every crash of one."""
    caller = Caller()

    async with Run(config_for(tmp_path), [tmp_path], cells=2) as run:
        cells = [unit for unit in run._supervisor.units if unit.name.startswith("cell")]
        problems = [await caller.failure(run, "bad", "/die") for _ in range(2)]
        quarantined = await caller.call(run, "bad", "/who")
        await wait_until(lambda: all(unit.pid for unit in cells))
        neighbours = {unit.pid for unit in cells}
        third = await caller.failure(run, "bad", "/die")
        again = await caller.call(run, "bad", "/who")
        untouched = {unit.pid for unit in cells}

    assert [problem.where for problem in (*problems, third)] == ["bad"] * 3
    assert quarantined["pid"] not in neighbours
    assert again["pid"] not in (quarantined["pid"], *neighbours)
    assert neighbours == untouched


@pytest.mark.parametrize("hosting", ["cell", "process"])
async def test_a_server_that_is_given_up_refuses_calls_at_once(
    tmp_path: Path, hosting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket was kept open, so every caller waited for its whole deadline."""
    monkeypatch.setattr(supervisor, "MAX_RESTARTS", 1)
    caller = Caller()

    async with Run(config_for(tmp_path, hosting), [tmp_path]) as run:
        for _ in range(8):
            if not run.lost_instances:
                await caller.failure(run, "bad", "/die")
        await wait_until(lambda: run.lost_instances)
        problem = await caller.failure(run, "bad", "/who")
        port = next(instance.port for instance in run.instances if instance.name == "bad")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=10).close()
        fine = await caller.call(run, "fine", "/who")
        lost = set(run.lost_instances)

    assert lost == {"bad"}
    assert problem.where == "bad"
    assert fine["pid"] != os.getpid()
