"""Workspaces run one call at a time, leave no session open, and report failures of the sandbox."""

import asyncio

import pytest
from fastapi import Request

from nemo_gym.authoring.model_replies import text_response
from nemo_gym.authoring.verifier_cases import offline_server
from nemo_gym.errors import EnvFailed
from nemo_gym.keys import SESSION_ID_KEY
from nemo_gym.sandbox.python import PythonResult
from nemo_gym.sandbox.spec import SandboxError
from resources_servers.math_with_code.app import MathWithCodeServer, MathWithCodeVerifyRequest
from resources_servers.math_with_code.workspaces import Workspaces

FINE = PythonResult(stdout="1\n")


class FakeSession:
    """A fake session that counts concurrent calls and returns or raises `answer`."""

    generation = 0

    def __init__(self, answer: PythonResult | Exception = FINE) -> None:
        self.answer = answer
        self.running = self.most = 0
        self.is_closed = False

    async def execute(self, code: str, *, timeout_s: float) -> PythonResult:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def aclose(self) -> None:
        self.is_closed = True


def build_workspaces(session: FakeSession) -> Workspaces:
    return Workspaces(lambda: session, idle_seconds=3600, most=2)  # type: ignore[arg-type, return-value]


async def test_concurrent_calls_run_one_after_the_other() -> None:
    """A model may make several calls in one turn, but the session has one interpreter."""
    session = FakeSession()
    workspaces = build_workspaces(session)

    await asyncio.gather(*(workspaces.execute("a", "1", 1.0) for _ in range(10)))
    closed = await workspaces.close("a")

    assert session.most == 1
    assert session.is_closed
    assert closed is not None
    assert closed.calls == 10


async def test_closing_the_workspaces_closes_every_session() -> None:
    """A stopped server must leave no process."""
    session = FakeSession()
    workspaces = build_workspaces(session)
    await workspaces.execute("a", "1", 1.0)

    await workspaces.aclose()

    assert (len(workspaces), session.is_closed) == (0, True)
    assert await workspaces.close("a") is None


@pytest.mark.parametrize("answer", [SandboxError("no box"), PythonResult(kind="sandbox", stderr="no box")])
async def test_a_failed_sandbox_is_a_failure_and_not_a_wrong_answer(answer: PythonResult | Exception) -> None:
    """The agent shows the model an error and goes on; the verdict must not depend on it."""
    session = FakeSession(answer)
    server = offline_server(MathWithCodeServer, allow_unsandboxed=True)
    server._workspaces = build_workspaces(session)
    request = Request({"type": "http", "session": {SESSION_ID_KEY: "fixture"}})
    row = {"responses_create_params": {"input": "?"}, "expected_answer": "1", "response": text_response(r"\boxed{2}")}

    with pytest.raises(EnvFailed, match="no box"):
        await server._workspaces.execute("fixture", "1", 1.0)
    with pytest.raises(EnvFailed, match="during the session: no box"):
        await server.verify(request, MathWithCodeVerifyRequest.model_validate(row))

    assert session.is_closed
