"""The last box counts, in many forms and from two places; names live as long as their session and no longer."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.authoring.cheats import generic_cheats
from nemo_gym.authoring.replies import Reply, build_response, text_response
from nemo_gym.authoring.verifier_fixture import exercise_verifier_fixture, offline_server
from nemo_gym.sandbox.python import PythonResult
from nemo_gym.sandbox.testing import needs_isolation as needs_box
from resources_servers.math_with_code import audit
from resources_servers.math_with_code.app import (
    VERIFIER_FIXTURE,
    MathWithCodeServer,
    MathWithCodeVerifyRequest,
    answer_of,
    cut,
    graded,
)
from resources_servers.math_with_code.generate import KINDS, rows

HERE = Path(__file__).parent
ROWS = rows(10, seed=1)
PATIENCE = 60.0


def verdict(row: dict[str, Any], reply: Reply) -> tuple[float, str | None]:
    """The reward and the answer that was read, without any server."""
    body = MathWithCodeVerifyRequest.model_validate({**row, "response": build_response(reply, row)})
    found = graded(answer_of(body.response, "execute_python"), body.expected_answer)
    return found.reward, found.answer


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["problem"]["kind"])
def test_the_oracle_scores_in_every_odd_form_and_what_comes_close_in_none(row: dict[str, Any]) -> None:
    """A right answer judged wrong is a lesson lost, and the other way round."""
    forms = [audit.oracle(row), *audit.odd_forms(row)]

    assert len(forms) >= 20
    assert [form for form in forms if verdict(row, form)[0] != 1.0] == []
    assert [reply for reply in audit.wrong(row) if verdict(row, reply)[0] != 0.0] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["problem"]["kind"])
def test_a_cheat_earns_nothing(row: dict[str, Any]) -> None:
    """Reward without an answer is what a policy learns first."""
    cheats = [*generic_cheats(row), *audit.cheats(row)]

    assert [name for name, reply in cheats if verdict(row, reply)[0] != 0.0] == []


def test_there_are_rows_of_every_kind() -> None:
    """A kind that is never drawn is never tested."""
    assert {row["problem"]["kind"] for row in ROWS} == set(KINDS)


def test_long_output_keeps_both_ends() -> None:
    """The beginning says what it is, the end how it went."""
    text = cut("a" * 500 + "b" * 500, 100)

    assert text.startswith("a" * 50 + "\n… 900 characters left out …\n")
    assert text.endswith("b" * 50)
    assert cut("short", 100) == "short"


def test_what_a_killed_call_leaves_is_told_in_words() -> None:
    """A model that is not told that its names are gone goes on as if they were there."""
    server = offline_server(MathWithCodeServer, allow_unsandboxed=True)

    lost = server.told(PythonResult(kind="memory", exit_code=1), lost=True)
    slow = server.told(PythonResult(kind="timeout", exit_code=124), lost=False)
    wrong = server.told(PythonResult(stderr="Traceback\nValueError: no", exit_code=1), lost=False)

    assert lost.error_message == "The code was ended: it ran out of memory. Names from earlier calls are gone."
    assert slow.error_message == "The code was ended: it took longer than 10 s."
    assert (wrong.success, wrong.error_message) == (False, "ValueError: no")


@pytest.mark.parametrize("row", [{}, {"expected_answer": ""}, {"expected_answer": None}, {"expected_answer": 5}])
def test_a_malformed_row_is_a_clear_422(row: dict[str, Any]) -> None:
    """The data is at fault, and must not look like a wrong answer."""
    server = offline_server(MathWithCodeServer, allow_unsandboxed=True)
    body = {"responses_create_params": {"input": "?"}, **row, "response": text_response("1")}

    answer = TestClient(server.setup_webserver()).post("/verify", json=body)

    assert answer.status_code == 422
    assert "expected_answer" in answer.text


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[MathWithCodeServer, TestClient]]]:
    """A server whose boxes are gone at the end of the test."""
    clients: list[TestClient] = []

    def start(**settings: Any) -> tuple[MathWithCodeServer, TestClient]:
        server = offline_server(MathWithCodeServer, memory_limit_mib=256, **settings)
        clients.append(TestClient(server.setup_webserver()).__enter__())
        return server, clients[-1]

    yield start
    for client in clients:
        client.__exit__(None, None, None)


def other_session(client: TestClient) -> TestClient:
    """Another caller of the same server, in the same event loop."""
    another = TestClient(client.app)
    another.portal = client.portal
    return another


def execute(client: TestClient, code: str) -> dict[str, Any]:
    answer = client.post("/execute_python", json={"code": code})
    assert answer.status_code == 200
    return dict(answer.json())


@needs_box
def test_names_are_kept_between_calls_and_end_with_the_verdict(serve: Any) -> None:
    """What a notebook does, and nothing for the next rollout to find."""
    server, client = serve()
    client.post("/seed_session", json={})

    assert execute(client, "x = 20\ny = 22")["stdout"] == ""
    assert execute(client, "x + y")["stdout"] == "42\n"
    assert execute(client, "import math\nprint(math.pi > 3)")["stdout"] == "True\n"
    failed = execute(client, "1 / 0")
    assert (failed["success"], failed["error_message"]) == (False, "ZeroDivisionError: division by zero")
    assert execute(client, "x")["stdout"] == "20\n"

    row = ROWS[0]
    right = client.post("/verify", json={**row, "response": build_response(audit.oracle(row), row)}).json()
    assert (right["reward"], right["isolated"], right["num_calls"]) == (1.0, True, 1)
    assert len(server._workspaces) == 0
    assert "NameError" in execute(client, "x")["stderr"]


@needs_box
def test_two_sessions_know_nothing_of_each_other(serve: Any) -> None:
    """Thousands of rollouts use one server at once."""
    _, ada = serve()
    bob = other_session(ada)
    ada.post("/seed_session", json={})
    bob.post("/seed_session", json={})

    execute(ada, "secret = 7\nopen('note.txt', 'w').write('seven')")

    assert "NameError" in execute(bob, "secret")["stderr"]
    assert execute(bob, "import os\nos.listdir('.')")["stdout"] == "[]\n"
    assert execute(ada, "secret, open('note.txt').read()")["stdout"] == "(7, 'seven')\n"


@needs_box
def test_seeding_again_starts_over(serve: Any) -> None:
    """A retried rollout must not inherit the names of the attempt before."""
    _, client = serve()
    client.post("/seed_session", json={})
    execute(client, "x = 1")

    client.post("/seed_session", json={})

    assert "NameError" in execute(client, "x")["stderr"]


@needs_box
def test_code_that_takes_too_long_is_stopped_and_the_session_goes_on(serve: Any) -> None:
    """One endless loop is a lesson, not the end of the rollout."""
    _, client = serve(max_execution_time=1.0)
    client.post("/seed_session", json={})

    stopped = execute(client, "while True:\n    pass")
    hungry = execute(client, "hoard = [bytearray(1 << 24) for _ in range(1000)]")

    assert "longer than 1 s" in stopped["error_message"]
    assert not hungry["success"]
    assert execute(client, "1 + 1")["stdout"] == "2\n"


@needs_box
def test_a_session_nobody_comes_back_to_is_closed(serve: Any) -> None:
    """A rollout that died must not hold a process for ever."""
    server, client = serve(session_idle_secs=0.05)
    client.post("/seed_session", json={})
    execute(client, "x = 1")

    until = time.monotonic() + PATIENCE
    while len(server._workspaces) and time.monotonic() < until:
        client.portal.call(asyncio.sleep, 0.01)

    assert len(server._workspaces) == 0


@needs_box
def test_too_many_sessions_are_a_failure_and_not_a_verdict(serve: Any) -> None:
    """The bound is the machine's, so nobody may be graded by it."""
    _, ada = serve(max_sessions=1)
    bob = other_session(ada)
    execute(ada, "1")

    with pytest.raises(Exception, match="max_sessions"):
        bob.post("/execute_python", json={"code": "1"})


@needs_box
def test_rows_may_call_the_tool_by_another_name(serve: Any) -> None:
    """Datasets bring their own."""
    _, client = serve(tool_name="python")

    assert client.post("/python", json={"code": "2 + 2"}).json()["stdout"] == "4\n"
    assert client.post("/execute_python", json={"code": "1"}).status_code == 404


def test_the_example_data_is_what_the_generator_writes() -> None:
    """Committed data that drifts from its source is data nobody can explain."""
    path = HERE.parent / "data" / "example.jsonl"

    assert [json.loads(line) for line in path.read_text("utf-8").splitlines()] == rows(5, seed=0)


def test_the_example_rollouts_get_the_same_verdict_today() -> None:
    """Committed rollouts that no longer hold mislead whoever looks at them."""
    for line in (HERE.parent / "data" / "example_rollouts.jsonl").read_text("utf-8").splitlines():
        rollout = json.loads(line)
        body = MathWithCodeVerifyRequest.model_validate(rollout)
        again = graded(answer_of(body.response, "execute_python"), body.expected_answer)
        assert (again.reward, again.answer) == (rollout["reward"], rollout["extracted_answer"])


@needs_box
async def test_the_verifier_decides_every_case_as_written() -> None:
    """`gym env test math_with_code` tries the same cases."""
    results = await exercise_verifier_fixture(VERIFIER_FIXTURE, seeded=True, reward_range=(0, 1), best=1.0)

    assert [result for result in results if not result.is_good] == []
