"""Cells that block or crash are restarted, their culprit is named and quarantined. Real processes on loopback."""

import asyncio
import os
import signal
import socket
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import DeadlineExceeded, GymError, IncompleteReply, ServerUnreachable
from nemo_gym.launch import supervisor
from nemo_gym.launch.ports import OFFLINE_PORT
from nemo_gym.launch.run import Run
from nemo_gym.processes import start_ticks
from nemo_gym.server_utils import ServerClient, get_response_json
from nemo_gym.transport import call_timing
from nemo_gym.transport.response_errors import ERROR_HEADER, FAILED_HEADER
from tests.processes import wait_until

pytestmark = pytest.mark.asyncio

SOURCE = """
    import asyncio, ctypes, itertools, os, posix, re, signal, threading, time
    from fastapi.responses import StreamingResponse
    from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer

    class Server(SimpleResourcesServer):
        HOSTING = "cell"
        config: BaseResourcesServerConfig

        def setup_webserver(self):
            app = super().setup_webserver()
            for tool in (self.who, self.wait, self.sleep, self.convolve, self.pattern, self.die, self.burst):
                app.post(f"/{tool.__name__}")(tool)
            for tool in (self.pause, self.exit_task, self.exit_soon, self.stop, self.cancel, self.break_off):
                app.post(f"/{tool.__name__}")(tool)
            for tool in (self.fork, self.fork_exit, self.fork_sync, self.terminate):
                app.post(f"/{tool.__name__}")(tool)
            for tool in (self.kill_group, self.kill_thread, self.execute, self.posix_exit, self.fail_to_execute):
                app.post(f"/{tool.__name__}")(tool)
            for tool in (self.exit_sync, self.exit_executor, self.exit_thread, self.fault, self.close_files, self.lock):
                app.post(f"/{tool.__name__}")(tool)
            return app

        async def pause(self) -> dict:
            print("waiting", flush=True)
            await asyncio.sleep(1.5)
            return {"pid": os.getpid()}

        async def exit_task(self) -> dict:
            async def work():
                await asyncio.sleep(0.05)
                raise SystemExit(4)

            task = asyncio.create_task(work())
            await asyncio.wait([task])
            return {"pid": os.getpid()}

        async def exit_soon(self) -> dict:
            asyncio.get_running_loop().call_later(0.05, exit, 6)
            await asyncio.sleep(0.2)
            return {"pid": os.getpid()}

        async def stop(self) -> dict:
            asyncio.get_running_loop().stop()
            await asyncio.sleep(0.1)
            return {"pid": os.getpid()}

        async def cancel(self) -> dict:
            for task in asyncio.all_tasks():
                task.cancel()
            await asyncio.sleep(5)

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

        def exit_sync(self) -> dict:
            os._exit(5)

        async def terminate(self) -> dict:
            os.kill(os.getpid(), 15)
            await asyncio.sleep(5)

        async def exit_executor(self) -> dict:
            await asyncio.to_thread(os._exit, 5)

        async def exit_thread(self) -> dict:
            threading.Thread(target=lambda: (time.sleep(0.1), os._exit(5))).start()
            await asyncio.sleep(5)

        async def fault(self) -> dict:
            threading.Thread(target=lambda: (time.sleep(0.1), ctypes.string_at(0))).start()
            await asyncio.sleep(5)

        async def close_files(self) -> dict:
            os.closerange(3, 4096)
            await asyncio.sleep(5)

        async def kill_group(self) -> dict:
            def kill():
                os.setpgid(0, 0)
                os.killpg(0, signal.SIGKILL)

            await asyncio.to_thread(kill)

        async def kill_thread(self) -> dict:
            await asyncio.to_thread(signal.pthread_kill, threading.main_thread().ident, signal.SIGKILL)

        async def execute(self) -> dict:
            await asyncio.to_thread(os.execlp, "false", "false")

        async def fail_to_execute(self) -> dict:
            try:
                os.execv("/missing", ["missing"])
            except FileNotFoundError:
                return {"pid": os.getpid()}

        async def posix_exit(self) -> dict:
            await asyncio.to_thread(posix._exit, 5)

        async def lock(self) -> dict:
            threading.Thread(target=lambda: (time.sleep(0.1), all(itertools.repeat(1))), daemon=True).start()
            await asyncio.sleep(5)

        async def fork(self) -> dict:
            child = os.fork()
            return {"child": child}

        async def fork_exit(self) -> dict:
            child = os.fork()
            if child == 0:
                await asyncio.sleep(0.01)
                raise SystemExit(3)
            return {"child": child}

        def fork_sync(self) -> dict:
            child = os.fork()
            return {"child": child}

        async def break_off(self) -> StreamingResponse:
            async def parts():
                yield b'{"pid": '
                await asyncio.sleep(0.1)
                os._exit(5)

            return StreamingResponse(parts(), media_type="application/json")

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
        answer = await get_response_json(await self.post(run, name, path, rollout))
        assert isinstance(answer, dict), answer
        return answer

    async def post(self, run: Run, name: str, path: str, rollout: tuple[int, int] | None = None) -> Any:
        head = BaseServerConfig.model_validate(dict(run.config["head_server"]))
        client = ServerClient(head_server_config=head, global_config_dict=run.config)
        call_timing.set_current_rollout(rollout)
        async with asyncio.timeout(60):
            return await client.post(server_name=name, url_path=path, json={})

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


ENDS_IN_THREADS = ["/exit_sync", "/exit_executor", "/exit_thread", "/fault", "/close_files", "/lock"]
ENDS_IN_THREADS += ["/kill_group", "/kill_thread", "/execute", "/posix_exit"]


@pytest.mark.parametrize("hosting", ["cell", "process"])
@pytest.mark.parametrize("path", ENDS_IN_THREADS)
async def test_a_thread_that_ends_or_stops_its_process_names_its_rollout(
    tmp_path: Path, path: str, hosting: str
) -> None:
    """The event loop runs another request, or none, in that moment; all rollouts in flight would pay."""
    caller = Caller()
    config = config_for(tmp_path, hosting, blocked_cell_timeout_seconds=1.0 if hosting == "cell" else 0.1)
    innocent_server = "bad" if hosting == "process" else "fine"

    async with Run(config, [tmp_path], watch=caller.watch) as run:
        innocent = asyncio.create_task(caller.failure(run, innocent_server, "/wait", (8, 0)))
        await caller.waiting.wait()
        begin = time.monotonic()
        culprit = asyncio.create_task(caller.failure(run, "bad", path, (7, 1)))
        problems = [await innocent, await culprit]
        [crash] = await run.find_crashes("bad", begin)

    assert f"bad: POST {path} of rollout 7-1 was running" in str(crash)
    assert all(isinstance(problem, ServerUnreachable) for problem in problems)


async def test_a_program_that_cannot_be_executed_is_not_an_end_of_the_process(tmp_path: Path) -> None:
    """The process goes on; the rollout that tried must not be blamed for a later crash from outside."""
    caller = Caller()

    async with Run(config_for(tmp_path), [tmp_path], watch=caller.watch) as run:
        survivor = await caller.call(run, "bad", "/fail_to_execute", (7, 1))
        begin = time.monotonic()
        os.kill(survivor["pid"], signal.SIGKILL)
        [crash] = await run.find_crashes("bad", begin)

    assert crash.handler is None


async def test_a_request_that_asks_its_cell_to_end_is_named(tmp_path: Path) -> None:
    """The orderly end of the process overwrote the culprit, and all rollouts in flight paid with an attempt."""
    caller = Caller()

    async with Run(config_for(tmp_path), [tmp_path], watch=caller.watch) as run:
        begin = time.monotonic()
        await caller.failure(run, "bad", "/terminate", (7, 1))
        [crash] = await run.find_crashes("bad", begin)

    assert "bad: POST /terminate of rollout 7-1 was running" in str(crash)


async def test_a_crash_is_named_to_callers_on_other_event_loops(tmp_path: Path) -> None:
    """A trainer calls from several loops; its error must name the server to look at, as that of the collector does."""
    caller = Caller()

    async with Run(config_for(tmp_path), [tmp_path], watch=caller.watch, own_loop=False) as run:

        def call_on_own_loop() -> GymError:
            async def call() -> GymError:
                return await caller.failure(run, "bad", "/die", (7, 1))

            return asyncio.run(call())

        problem = await asyncio.to_thread(call_on_own_loop)

    assert isinstance(problem, ServerUnreachable) and problem.where == "bad"
    assert "bad: POST /die of rollout 7-1 was running" in str(problem)


async def test_an_answer_that_breaks_off_with_its_process_has_a_crash(tmp_path: Path) -> None:
    """Without the crash, the failure would be one of the handler: `tool_error`, and count for its rollout."""
    caller = Caller()

    async with Run(config_for(tmp_path, "process"), [tmp_path]) as run:
        begin = time.monotonic()
        problem = await caller.failure(run, "bad", "/break_off", (7, 1))
        [crash] = await run.find_crashes("bad", begin)

    assert isinstance(problem, IncompleteReply) and problem.where == "bad"
    assert crash.handler is not None and crash.handler.rollout == (7, 1)


async def test_a_process_that_is_stopped_from_outside_is_suspended(tmp_path: Path) -> None:
    """Timeouts of its callers name it; a process that a handler blocks is another case."""
    async with Run(config_for(tmp_path, "process"), [tmp_path]) as run:
        pid = next(unit.pid for unit in run._supervisor.units if unit.name == "bad")
        before = run.is_suspended("bad")
        os.kill(pid, signal.SIGSTOP)
        await wait_until(lambda: run.is_suspended("bad"))
        other = run.is_suspended("fine")
        os.kill(pid, signal.SIGCONT)
        await wait_until(lambda: not run.is_suspended("bad"))

    assert (before, other) == (False, False)


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
@pytest.mark.parametrize("path", ["/exit_task", "/exit_soon", "/stop"])
async def test_a_background_task_or_callback_cannot_end_its_process(tmp_path: Path, path: str, hosting: str) -> None:
    """Every request of the process would get an error, and nothing would name the server that caused it."""
    caller = Caller()

    async with Run(config_for(tmp_path, hosting), [tmp_path], watch=caller.watch) as run:
        innocent = asyncio.create_task(caller.call(run, "bad" if hosting == "process" else "fine", "/pause", (8, 0)))
        await caller.waiting.wait()
        answers = [await caller.call(run, "bad", path, (7, 1)) for _ in range(3)]
        answers.append(await innocent)
        starts = [unit.starts for unit in run._supervisor.units]

    assert {answer["pid"] for answer in answers} == {answers[0]["pid"]}
    assert set(starts) == {1}


@pytest.mark.parametrize("hosting", ["cell", "process"])
@pytest.mark.parametrize("path", ["/fork", "/fork_exit", "/fork_sync"])
async def test_a_fork_that_leaves_its_handler_is_ended(tmp_path: Path, path: str, hosting: str) -> None:
    """It ran the event loop of its parent, took the answers of other requests, and the run never ended."""
    caller = Caller()

    async with Run(config_for(tmp_path, hosting), [tmp_path], watch=caller.watch) as run:
        children = [(await caller.call(run, "bad", path, (7, 1)))["child"] for _ in range(3)]
        async with asyncio.timeout(30):
            while any(map(start_ticks, children)):  # noqa: ASYNC110 - the end of a foreign process
                await asyncio.sleep(0.01)
        assert (await caller.call(run, "fine", "/who"))["pid"] not in children

    assert 0 not in children


async def test_requests_cancelled_by_another_request_are_innocent(tmp_path: Path) -> None:
    """One handler can cancel all tasks of its cell; the cell goes on, and the other rollouts are run again."""
    caller = Caller()

    async with Run(config_for(tmp_path), [tmp_path], watch=caller.watch) as run:
        innocent = asyncio.create_task(caller.post(run, "fine", "/pause", (8, 0)))
        await caller.waiting.wait()
        culprit = await caller.post(run, "bad", "/cancel", (7, 1))
        cancelled = await innocent
        starts = [unit.starts for unit in run._supervisor.units]

    assert (cancelled.headers[FAILED_HEADER], cancelled.headers[ERROR_HEADER]) == ("fine", "RequestCancelled")
    assert (culprit.headers[FAILED_HEADER], culprit.headers[ERROR_HEADER]) == ("bad", "CancelledError")
    assert set(starts) == {1}


async def test_crashes_with_a_known_rollout_are_survived_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rollouts that do not crash the server can still be scored; but a run must end if all rollouts crash it."""
    monkeypatch.setattr(supervisor, "MAX_RESTARTS", 1)
    monkeypatch.setattr(supervisor, "MAX_ROLLOUT_RESTARTS", 4)
    caller = Caller()

    async with Run(config_for(tmp_path, "process"), [tmp_path]) as run:
        for task in range(4):
            await caller.failure(run, "bad", "/die", (task, 0))
        survivor = await caller.call(run, "bad", "/who")
        await caller.failure(run, "bad", "/die", (4, 0))
        await wait_until(lambda: run.lost_instances)

    assert survivor["pid"]


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
