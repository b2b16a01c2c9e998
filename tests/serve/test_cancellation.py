"""A rollout can be cancelled from outside, and a client that goes away cancels its request."""

import asyncio
import socket

import httpx
import orjson
import pytest
from fastapi import BackgroundTasks, Body, Request
from pydantic import ConfigDict

from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.launch.app_listener import AppListener
from nemo_gym.serve import cancellation
from nemo_gym.serve.app import create_app
from nemo_gym.serve.cancellation import CANCELLED_ROLLOUTS, Cancellation
from nemo_gym.serve.failures import FailureMiddleware
from nemo_gym.serve.webserver import uvicorn_options
from nemo_gym.server_utils import ServerClient
from nemo_gym.transport.deadlines import ALLOWANCE_HEADER
from nemo_gym.wire.call_reply import Reply
from nemo_gym.wire.run_seed_verify import BaseRunRequest

ROW = {"responses_create_params": {"input": "hi"}, "_ng_task_index": 7, "_ng_rollout_index": 1}

KEEPS_REPLIES = {ALLOWANCE_HEADER: "keep_replies=1"}


class RunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class Agent(SimpleResponsesAPIAgent):
    """Waits until it is cancelled."""

    started: asyncio.Event
    cancelled: asyncio.Event
    swallows: bool = False

    async def responses(self, body=Body()):
        raise NotImplementedError

    async def run(self, request: Request, body: RunRequest = Body()) -> dict:
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            if self.swallows:
                raise RuntimeError("my client library reports a cancelled call like this") from None
            raise
        return {}


def make_agent(cls=Agent, **fields):
    config = BaseResponsesAPIAgentConfig(host="127.0.0.1", port=1, entrypoint="", name="a")
    client = ServerClient(head_server_config=BaseServerConfig(host="127.0.0.1", port=2), global_config_dict={})
    return cls(config=config, server_client=client, started=asyncio.Event(), cancelled=asyncio.Event(), **fields)


class LocalServer:
    """An app that uvicorn serves on a free port."""

    def __init__(self, app):
        self._app = app

    async def __aenter__(self):
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        options = uvicorn_options({}) | {"http": "nemo_gym.serve.http_protocol:GuardedHttpProtocol"}
        self._listener = AppListener(self._app, listener, options)
        await self._listener.open()
        self.port = listener.getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._listener.stop_accepting()
        await self._listener.close()


async def test_a_client_that_disconnects_cancels_its_run():
    """A trainer that drops a straggler must not leave it generating at the engine."""
    agent = make_agent()
    async with LocalServer(agent.prepare_webserver({})) as server, httpx.AsyncClient() as client:
        request = asyncio.create_task(client.post(f"http://127.0.0.1:{server.port}/run", json=ROW))
        await agent.started.wait()
        request.cancel()

        await asyncio.wait_for(agent.cancelled.wait(), 1)


async def test_a_disconnect_is_no_error_in_the_log(caplog):
    """Cancelled stragglers are routine; a traceback for each would hide real errors."""
    agent = make_agent()
    async with LocalServer(agent.prepare_webserver({})) as server, httpx.AsyncClient() as client:
        request = asyncio.create_task(client.post(f"http://127.0.0.1:{server.port}/run", json=ROW))
        await agent.started.wait()
        request.cancel()
        await asyncio.wait_for(agent.cancelled.wait(), 1)
        await asyncio.sleep(0)

    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_background_work_after_the_answer_goes_on_without_the_client():
    """An answer does not wait for background tasks, so their client may be gone before they are done."""
    app, finish, finished = create_app(), asyncio.Event(), asyncio.Event()
    app.add_middleware(FailureMiddleware, server_name="s")

    async def work():
        await finish.wait()
        finished.set()

    @app.post("/start")
    async def start(tasks: BackgroundTasks) -> dict:
        tasks.add_task(work)
        return {}

    async with LocalServer(app) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /start HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        assert b"200" in await reader.readline()
        writer.close()
        await writer.wait_closed()
        async with httpx.AsyncClient() as client:  # a round trip, so that the server has seen the disconnect
            await client.get(f"http://127.0.0.1:{server.port}/")
        finish.set()

        await asyncio.wait_for(finished.wait(), 1)


async def test_background_work_that_ends_during_the_next_request_does_not_protect_it_from_a_disconnect():
    """Both share a connection; otherwise the second request generates on without its client."""
    app, finish, finished = create_app(), asyncio.Event(), asyncio.Event()
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def work():
        await finish.wait()
        finished.set()

    @app.post("/start")
    async def start(tasks: BackgroundTasks) -> dict:
        tasks.add_task(work)
        return {}

    @app.post("/wait")
    async def wait() -> dict:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return {}

    async with LocalServer(app) as server, asyncio.timeout(5), httpx.AsyncClient() as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /start HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        assert b"200" in await reader.readline()
        writer.write(b"POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        await started.wait()
        finish.set()
        await finished.wait()
        await client.get(
            f"http://127.0.0.1:{server.port}/"
        )  # a round trip, so that the task of the first request ended
        writer.close()

        await cancelled.wait()


@pytest.mark.parametrize("swallows", [False, True])
async def test_cancelling_by_id_ends_the_run_with_an_answer(swallows):
    """The trainer gets the cancelled rollout as a record, never as a failure or a reward."""
    agent = make_agent(swallows=swallows)
    async with LocalServer(agent.prepare_webserver({})) as server, httpx.AsyncClient(timeout=5) as client:
        url = f"http://127.0.0.1:{server.port}"
        running = asyncio.create_task(client.post(f"{url}/run", json=ROW, headers=KEEPS_REPLIES))
        await agent.started.wait()

        acknowledged = await client.post(f"{url}/ng-rollout/7-1/cancel")
        answer = await running

        assert acknowledged.json() == {"rollout_id": "7-1", "cancelled": 1}
        assert answer.status_code == 200
        assert answer.json()["_ng_no_persist"] is True
        assert "reward" not in answer.json()


async def test_a_cancelled_run_has_no_reward_or_response_of_its_row():
    """Records of earlier rollouts are used as rows; an old reward would be trained on as that of the new rollout."""
    agent = make_agent()
    row = ROW | {"reward": 1.0, "response": {"id": "old"}, "answer": "4"}
    async with LocalServer(agent.prepare_webserver({})) as server, httpx.AsyncClient(timeout=5) as client:
        url = f"http://127.0.0.1:{server.port}"
        running = asyncio.create_task(client.post(f"{url}/run", json=row, headers=KEEPS_REPLIES))
        await agent.started.wait()
        await client.post(f"{url}/ng-rollout/7-1/cancel")

        assert (await running).json() == ROW | {"answer": "4", "_ng_no_persist": True}


class StrictAgent(Agent):
    """An agent whose request class drops the fields that it does not declare."""

    async def run(self, request: Request, body: BaseRunRequest = Body()) -> dict:
        return await super().run(request, body)


async def test_a_rollout_is_known_by_its_header_if_the_agent_drops_its_index():
    """Agents written for NeMo Gym declare only the fields they use; their rollouts must be cancellable too."""
    agent, headers = make_agent(StrictAgent), KEEPS_REPLIES | {"x-nemo-gym-rollout": "7-1"}
    async with LocalServer(agent.prepare_webserver({})) as server, httpx.AsyncClient(timeout=5) as client:
        url = f"http://127.0.0.1:{server.port}"
        running = asyncio.create_task(client.post(f"{url}/run", json=ROW, headers=headers))
        await agent.started.wait()

        assert (await client.post(f"{url}/ng-rollout/7-1-a2/cancel")).json()["cancelled"] == 1
        assert (await running).json()["_ng_no_persist"] is True


async def test_cancelling_an_unknown_rollout_is_no_error():
    """A rollout may end while its cancellation is on the way."""
    agent = make_agent()
    async with LocalServer(agent.prepare_webserver({})) as server, httpx.AsyncClient() as client:
        answer = await client.post(f"http://127.0.0.1:{server.port}/ng-rollout/9-9/cancel")

    assert (answer.status_code, answer.json()["cancelled"]) == (200, 0)


async def test_a_scope_passes_on_a_cancellation_of_its_task():
    """A server that stops must not take its own cancellation for that of a rollout."""

    async def work():
        with cancellation.RolloutScope("a", "1-0"):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert Cancellation("a", "1-0").apply() == 0


async def test_a_scope_ends_both_requests_of_an_id():
    """Two attempts may overlap after a lost connection; a cancelled rollout must leave neither."""
    ended = []

    async def work(number):
        with cancellation.RolloutScope("a", "1-0") as scope:
            await asyncio.Event().wait()
        ended.append((number, scope.is_cancelled))

    tasks = [asyncio.create_task(work(number)) for number in range(2)]
    await asyncio.sleep(0)

    assert Cancellation("a", "1-0").apply() == 2
    await asyncio.gather(*tasks)
    assert sorted(ended) == [(0, True), (1, True)]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (Cancellation("other", "foo"), Cancellation("a", "foo")),
        (Cancellation("a", "foo", caller=2), Cancellation("a", "foo", caller=1)),
        (Cancellation("a", "foo-a1"), Cancellation("a", "foo")),
    ],
    ids=["another agent", "another caller", "another attempt"],
)
async def test_a_cancellation_ends_no_rollout_of_others(wrong, right):
    """Sessions and evaluations at the same servers use the same ids; a rollout of the other one must go on."""
    started = asyncio.Event()

    async def work():
        with cancellation.RolloutScope("a", "foo", caller=1):
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await started.wait()

    assert (wrong.apply(), right.apply()) == (0, 1)
    await task


async def test_only_runs_that_keep_their_replies_are_cancelled_by_id():
    """An evaluation at the servers of a session would take a cancelled rollout for its result."""
    agent = make_agent()
    async with LocalServer(agent.prepare_webserver({})) as server, httpx.AsyncClient(timeout=5) as client:
        url = f"http://127.0.0.1:{server.port}"
        running = asyncio.create_task(client.post(f"{url}/run", json=ROW))
        await agent.started.wait()

        assert (await client.post(f"{url}/ng-rollout/7-1/cancel")).json()["cancelled"] == 0
        assert not agent.cancelled.is_set()
        running.cancel()


async def test_the_number_of_the_caller_is_compared():
    """Two sessions at one agent number their rollouts alike."""
    agent = make_agent()
    async with LocalServer(agent.prepare_webserver({})) as server, httpx.AsyncClient(timeout=5) as client:
        url = f"http://127.0.0.1:{server.port}"
        running = asyncio.create_task(client.post(f"{url}/run", json=ROW, headers=KEEPS_REPLIES))
        await agent.started.wait()

        counts = [
            (await client.post(f"{url}/ng-rollout/7-1/cancel?caller={caller}")).json()["cancelled"]
            for caller in ("2", "x", "1")
        ]
        await running

    assert counts == [0, 0, 1]


class Cell:
    """The link to a cell, which answers with a function of the call."""

    def __init__(self, answer):
        self._answer = answer

    async def send(self, instance, call):
        assert instance == CANCELLED_ROLLOUTS
        return await self._answer(call)


async def test_a_cell_that_does_not_answer_does_not_hold_up_a_cancellation(monkeypatch):
    """The cell that runs the rollout may be a healthy one, whose answer must not wait for a blocked cell."""

    async def never(call):
        await asyncio.Event().wait()

    async def asked_cell(call):
        path, _, query = call.path.partition("?")
        sent = Cancellation.of({"path": path, "query_string": query.encode()})
        return Reply(200, orjson.dumps({"cancelled": int(sent == Cancellation("a", "7-1", caller=5))}))

    monkeypatch.setattr(cancellation, "_other_cells", [Cell(never), Cell(asked_cell)])
    monkeypatch.setattr(cancellation, "CELL_SECONDS", 0.01)
    agent = make_agent()
    async with LocalServer(agent.prepare_webserver({})) as server, httpx.AsyncClient(timeout=5) as client:
        answer = await client.post(f"http://127.0.0.1:{server.port}/ng-rollout/7-1/cancel?caller=5")

    assert answer.json()["cancelled"] == 1
