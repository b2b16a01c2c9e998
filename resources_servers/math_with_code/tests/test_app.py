"""Prove the verifier of mathematics with code: the last box counts, and names live as long as their session."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.authoring.verifier_cases import offline_server
from nemo_gym.authoring.verifier_proof import VerifierProof, verify_reply
from nemo_gym.sandbox.providers.local import probe
from nemo_gym.sandbox.python import PythonResult
from resources_servers.math_with_code import audit
from resources_servers.math_with_code.app import MathWithCodeServer, shorten_middle
from resources_servers.math_with_code.generate import KINDS, rows

needs_isolation = pytest.mark.skipif(not probe().available, reason=f"no isolation here: {probe().problem}")

ROWS = rows(10, seed=1)
TIMEOUT_SECONDS = 60.0


@needs_isolation
class TestProof(VerifierProof):
    """Oracle, odd forms, wrong answers, cheats, broken rows, example data and fixture cases."""

    folder = Path(__file__).parents[1]
    oracle_rows = 10
    checked_rows = 2


def test_the_rows_have_every_kind() -> None:
    """A kind that is never drawn is never tested."""
    assert {row["problem"]["kind"] for row in ROWS} == set(KINDS)


def test_long_output_keeps_both_ends() -> None:
    """The beginning shows the kind of output, the end the result."""
    text = shorten_middle("a" * 500 + "b" * 500, 100)

    assert text.startswith("a" * 50 + "\n… 900 characters left out …\n")
    assert text.endswith("b" * 50)
    assert shorten_middle("short", 100) == "short"


def test_the_model_learns_why_a_call_ended_and_that_its_names_are_lost() -> None:
    """Without this message, a model goes on as if its names still existed."""
    server = offline_server(MathWithCodeServer, allow_unsandboxed=True)

    lost = server.describe_result(PythonResult(kind="memory", exit_code=1), names_lost=True)
    slow = server.describe_result(PythonResult(kind="timeout", exit_code=124), names_lost=False)
    wrong = server.describe_result(PythonResult(stderr="Traceback\nValueError: no", exit_code=1), names_lost=False)

    assert lost.error_message == "The code was ended: it ran out of memory. Names from earlier calls are gone."
    assert slow.error_message == "The code was ended: it took longer than 10 s."
    assert (wrong.success, wrong.error_message) == (False, "ValueError: no")


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[MathWithCodeServer, TestClient]]]:
    """Start servers and close their boxes at the end of the test."""
    clients: list[TestClient] = []

    def start(**settings: Any) -> tuple[MathWithCodeServer, TestClient]:
        server = offline_server(MathWithCodeServer, memory_limit_mib=256, **settings)
        clients.append(TestClient(server.setup_webserver()).__enter__())
        return server, clients[-1]

    yield start
    for client in clients:
        client.__exit__(None, None, None)


def other_session(client: TestClient) -> TestClient:
    """Return another client of the same server, in the same event loop."""
    another = TestClient(client.app)
    another.portal = client.portal
    return another


def execute(client: TestClient, code: str) -> dict[str, Any]:
    answer = client.post("/execute_python", json={"code": code})
    assert answer.status_code == 200
    return dict(answer.json())


@needs_isolation
def test_names_are_kept_between_calls_and_end_with_the_verdict(serve: Any) -> None:
    """A session works like a notebook and leaves nothing to the next rollout."""
    server, client = serve()
    client.post("/seed_session", json={})

    assert execute(client, "x = 20\ny = 22")["stdout"] == ""
    assert execute(client, "x + y")["stdout"] == "42\n"
    assert execute(client, "import math\nprint(math.pi > 3)")["stdout"] == "True\n"
    failed = execute(client, "1 / 0")
    assert (failed["success"], failed["error_message"]) == (False, "ZeroDivisionError: division by zero")
    assert execute(client, "x")["stdout"] == "20\n"

    verdict = verify_reply(client, ROWS[0], audit.oracle(ROWS[0]))
    assert (verdict["reward"], verdict["isolated"], verdict["num_calls"]) == (1.0, True, 1)
    assert len(server._workspaces) == 0
    assert "NameError" in execute(client, "x")["stderr"]


@needs_isolation
def test_sessions_share_neither_names_nor_files(serve: Any) -> None:
    """Thousands of rollouts use one server at once."""
    _, ada = serve()
    bob = other_session(ada)
    ada.post("/seed_session", json={})
    bob.post("/seed_session", json={})

    execute(ada, "secret = 7\nopen('note.txt', 'w').write('seven')")

    assert "NameError" in execute(bob, "secret")["stderr"]
    assert execute(bob, "import os\nos.listdir('.')")["stdout"] == "[]\n"
    assert execute(ada, "secret, open('note.txt').read()")["stdout"] == "(7, 'seven')\n"


@needs_isolation
def test_seeding_a_session_a_second_time_clears_it(serve: Any) -> None:
    """A retried rollout must not inherit the names of the previous attempt."""
    _, client = serve()
    client.post("/seed_session", json={})
    execute(client, "x = 1")

    client.post("/seed_session", json={})

    assert "NameError" in execute(client, "x")["stderr"]


@needs_isolation
def test_code_that_takes_too_long_is_stopped_and_the_session_goes_on(serve: Any) -> None:
    """One endless loop must not end the rollout."""
    _, client = serve(max_execution_time=1.0)
    client.post("/seed_session", json={})

    stopped = execute(client, "while True:\n    pass")
    hungry = execute(client, "hoard = [bytearray(1 << 24) for _ in range(1000)]")

    assert "longer than 1 s" in stopped["error_message"]
    assert not hungry["success"]
    assert execute(client, "1 + 1")["stdout"] == "2\n"


@needs_isolation
def test_an_idle_session_is_closed(serve: Any) -> None:
    """A rollout that died must not keep a process."""
    server, client = serve(session_idle_secs=0.05)
    client.post("/seed_session", json={})
    execute(client, "x = 1")

    deadline = time.monotonic() + TIMEOUT_SECONDS
    while len(server._workspaces) and time.monotonic() < deadline:
        client.portal.call(asyncio.sleep, 0.01)

    assert len(server._workspaces) == 0


@needs_isolation
def test_too_many_sessions_are_a_failure_and_not_a_verdict(serve: Any) -> None:
    """The limit belongs to the machine, so it must not affect a reward."""
    _, ada = serve(max_sessions=1)
    bob = other_session(ada)
    execute(ada, "1")

    with pytest.raises(Exception, match="max_sessions"):
        bob.post("/execute_python", json={"code": "1"})


@needs_isolation
def test_the_tool_may_have_another_name(serve: Any) -> None:
    """Datasets name the tool differently."""
    _, client = serve(tool_name="python")

    assert client.post("/python", json={"code": "2 + 2"}).json()["stdout"] == "4\n"
    assert client.post("/execute_python", json={"code": "1"}).status_code == 404
