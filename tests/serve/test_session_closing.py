"""`close` is called once for every session, whatever ended it, and cannot delay or fail a rollout."""

import asyncio
import logging
import threading
from typing import Any

import httpx
import pytest
from fastapi import Request
from pydantic import PrivateAttr

from nemo_gym.authoring.model_replies import text_response
from nemo_gym.authoring.verifier_cases import offline_server
from nemo_gym.base_resources_server import (
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.keys import CLOSE_PATH, EPISODE_HEADER, SESSION_ID_KEY
from nemo_gym.serve.session_closing import SessionCloser

ROW = {"responses_create_params": {"input": "Hello?"}}


class Docker(SimpleResourcesServer):
    """Starts a container for each session."""

    _running: set[str] = PrivateAttr(default_factory=set)
    _stopped: list[str] = PrivateAttr(default_factory=list)
    _stop: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)

    async def seed_session(self, request: Request, body: BaseSeedSessionRequest) -> BaseSeedSessionResponse:
        self._running.add(request.session[SESSION_ID_KEY])
        if (await request.json()).get("fail"):
            raise RuntimeError("no such image")
        return BaseSeedSessionResponse()

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        if body.response.output_text == "crash":
            raise RuntimeError("the verifier broke")
        return BaseVerifyResponse(**dict(body), reward=1.0)

    async def close(self, session_id: str) -> None:
        self._running.discard(session_id)
        self._stopped.append(session_id)
        self._stop.set()


class World:
    """A server with a client that keeps cookies; `wait_for_close` waits for a closed session."""

    def __init__(self, server_class: type[SimpleResourcesServer] = Docker, **settings: Any) -> None:
        self.server: Any = offline_server(server_class, **settings)
        self.app = self.server.prepare_webserver({})
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://docker")

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.http.post(path, json=body)

    async def wait_for_close(self) -> list[str]:
        async with asyncio.timeout(5):
            await self.server._stop.wait()
        return list(self.server._stopped)


async def test_a_seed_reports_that_the_session_must_be_closed() -> None:
    """An agent that gives up needs to know; other servers cost it no call."""
    world = World()

    seed = await world.post("/seed_session")

    assert (seed.json(), seed.headers[EPISODE_HEADER]) == ({}, '{"close":true}')


@pytest.mark.parametrize("text", ["fine", "crash"])
async def test_a_verified_session_is_closed_once(text: str) -> None:
    """The environment does it, so that every agent, also of other authors, leaves nothing behind."""
    world = World()
    await world.post("/seed_session")

    verdict = await world.post("/verify", **ROW, response=text_response(text))
    closed = await world.wait_for_close()
    await world.post(CLOSE_PATH)
    await world.post("/verify", **ROW, response=text_response("fine"))

    assert verdict.status_code == (200 if text == "fine" else 500)
    assert (len(closed), world.server._running) == (1, set())
    assert world.server._stopped == closed


async def test_an_agent_that_gives_up_closes_the_session() -> None:
    """Cancelled and failed rollouts hold containers, too."""
    world = World()
    await world.post("/seed_session")

    assert (await world.post(CLOSE_PATH)).status_code == 200
    assert len(await world.wait_for_close()) == 1


async def test_a_failed_seed_is_closed() -> None:
    """It may have started half of what it needs."""
    world = World()

    assert (await world.post("/seed_session", fail=True)).status_code == 500
    await world.wait_for_close()
    assert world.server._running == set()


async def test_a_session_that_is_seeded_again_is_closed_first() -> None:
    """The second seed would overwrite the only reference to the first container."""
    world = World()
    await world.post("/seed_session")
    await world.post("/seed_session")

    assert len(world.server._stopped) == 1
    assert len(world.server._running) == 1


async def test_a_session_is_opened_again_only_after_the_hook_of_its_first_episode() -> None:
    """A hook that is still running after a verification would remove the container of the second episode."""
    events: list[str] = []
    release = asyncio.Event()

    async def close(session_id: str) -> None:
        await release.wait()
        events.append("closed")

    closer = SessionCloser(close, name="docker", timeout=5, idle_seconds=60)
    await closer.open("a")
    closer.close_later("a")
    asyncio.get_running_loop().call_soon(release.set)
    await closer.open("a")
    events.append("opened")

    assert events == ["closed", "opened"]


async def test_open_sessions_are_closed_at_shutdown() -> None:
    """A stopped run leaves no container behind."""
    world = World()
    async with world.app.router.lifespan_context(world.app):
        for _ in range(3):
            world.http.cookies.clear()
            await world.post("/seed_session")

    assert (len(world.server._stopped), world.server._running) == (3, set())


class Stuck(Docker):
    async def close(self, session_id: str) -> None:
        await asyncio.Event().wait()


class BrokenHook(Docker):
    def close(self, session_id: str) -> None:  # type: ignore[override]  # synchronous, so it runs on a thread
        assert threading.current_thread() is not threading.main_thread()
        raise RuntimeError("docker is gone")


@pytest.mark.parametrize(("server", "text"), [(Stuck, "did not end within 0.05 s"), (BrokenHook, "docker is gone")])
async def test_a_hook_that_hangs_or_fails_is_logged_and_fails_no_rollout(
    server: type[Docker], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The verdict is already known; the operator reads about the leak in the log."""
    world = World(server, close_timeout_seconds=0.05)
    with caplog.at_level(logging.WARNING):
        async with asyncio.timeout(5), world.app.router.lifespan_context(world.app):
            await world.post("/seed_session")
            verdict = await world.post("/verify", **ROW, response=text_response("fine"))

    assert text in caplog.text
    assert verdict.json()["reward"] == 1.0


async def test_a_session_without_calls_is_closed_when_others_begin() -> None:
    """An agent that was killed reports nothing."""
    closed: list[str] = []

    async def close(session_id: str) -> None:
        closed.append(session_id)

    closer = SessionCloser(close, name="docker", timeout=1, idle_seconds=0)
    await closer.open("lost")
    await closer.open("new")
    await closer.close_all()

    assert closed == ["lost", "new"]


class OtherClose(SimpleResourcesServer):
    async def close(self) -> None:  # type: ignore[override]  # a method of an old folder with this name
        raise AssertionError("not the hook")

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse(**dict(body), reward=1.0)


async def test_a_method_named_close_without_a_session_id_is_not_the_hook() -> None:
    """Server folders written for NeMo Gym run unchanged."""
    world = World(OtherClose)

    seed = await world.post("/seed_session")

    assert EPISODE_HEADER not in seed.headers
    answer = await world.post(CLOSE_PATH)  # of every server without the hook: the session is not kept
    assert (answer.status_code, answer.json()) == (200, {"status": "closed"})
