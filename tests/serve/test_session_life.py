"""A session belongs to one life of its process: a later process has none of its state and must not go on with it."""

import os
from typing import Any

import pytest
from fastapi import Request
from fastapi.testclient import TestClient

from nemo_gym.errors import ServerUnreachable
from nemo_gym.keys import SESSION_ID_KEY
from nemo_gym.processes import start_ticks
from nemo_gym.rollouts.attribution import classify_error
from nemo_gym.rollouts.outcome import FailureKind
from nemo_gym.serve.app import GymApp, create_app
from nemo_gym.serve.correlation import RolloutContextMiddleware
from nemo_gym.serve.failures import DeadlineMiddleware, FailureMiddleware
from nemo_gym.serve.session import CELL_ENV_VAR, SessionCodec, SessionMiddleware
from nemo_gym.transport import in_process
from nemo_gym.transport.client_response import raise_for_lost_session, raise_for_status
from nemo_gym.transport.response_errors import FAILED_HEADER

KEY = "Server___one"
BASE = "http://127.0.0.1:1"
EARLIER = "1-1."  # process 1 has another start time
OUR_LIFE = f"{os.getpid():x}-{start_ticks(os.getpid()):x}."


def build(policy: str = "per-session", *, is_plain: bool = True) -> GymApp:
    """A server with one tool, called directly or through the ASGI stack."""
    app = create_app()
    app.add_middleware(SessionMiddleware, key=KEY, policy=policy, secret="s3cret")
    app.add_middleware(RolloutContextMiddleware)
    app.add_middleware(DeadlineMiddleware, server_name="one")
    app.add_middleware(FailureMiddleware, server_name="one")
    if not is_plain:
        app.router.middleware_stack = app.router.app

    async def answer(request: Request, body: dict[str, Any]) -> dict[str, Any]:
        if "choose" in body:
            request.session[SESSION_ID_KEY] = body["choose"]
        return dict(request.session)

    for path in ("/tool", "/verify", "/seed_session", "/run"):
        app.post(path)(answer)
    return app


def cookie_of(session: dict[str, Any], life: str = "") -> str:
    return SessionCodec("s3cret", KEY, life=life).encode(session)


def post(app: GymApp, path: str, cookie: str, body: dict[str, Any] | None = None) -> Any:
    return TestClient(app).post(path, json=body or {}, headers={"cookie": f"{KEY}={cookie}"})


@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize("path", ["/tool", "/verify", "/ng-rollout/3-1/tool"])
def test_a_session_of_an_earlier_process_is_refused(path: str, is_plain: bool) -> None:
    """The tool would answer from an empty state, and the verifier would give a false zero."""
    refusal = post(build(is_plain=is_plain), path, cookie_of({SESSION_ID_KEY: f"{EARLIER}abc"}))

    assert refusal.status_code == 410
    assert "set-cookie" not in refusal.headers  # or the next call would go on in a new session
    assert refusal.headers[FAILED_HEADER] == "one"


@pytest.mark.parametrize("is_plain", [True, False])
async def test_the_refusal_fails_the_rollout_as_server_died(is_plain: bool) -> None:
    """The rollout is run again; as an answer of a tool, the refusal would be the model's problem."""
    cookies = {KEY: cookie_of({SESSION_ID_KEY: f"{EARLIER}abc"})}
    response = await in_process.request(
        build(is_plain=is_plain), "POST", BASE, "/tool", json={}, cookies=cookies, callee="one"
    )

    with pytest.raises(ServerUnreachable) as raised:
        raise_for_lost_session(response, "one")
    with pytest.raises(Exception) as returned:  # as in an agent that does not use `ServerClient`
        await raise_for_status(response)  # type: ignore[arg-type]

    for error in (raised.value, returned.value):
        failure = classify_error(error, "agent", {"one": "resources_servers"}.get)
        assert (failure.kind, failure.server, failure.retryable) == (FailureKind.SERVER_DIED, "one", True)


@pytest.mark.parametrize("path", ["/seed_session", "/run", "/ng-rollout/0-0/seed_session"])
def test_the_first_call_of_a_rollout_starts_a_new_session(path: str) -> None:
    """A client that keeps its cookies must be able to start over after a restart."""
    client = TestClient(build())
    client.cookies.set(KEY, cookie_of({SESSION_ID_KEY: f"{EARLIER}abc"}))

    session = client.post(path, json={}).json()[SESSION_ID_KEY]

    assert session.startswith(OUR_LIFE)


@pytest.mark.parametrize("cell", [None, "0", "12"], ids=["process", "cell 0", "cell 12"])
def test_a_session_of_this_process_goes_on(cell: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions must work as before while their process lives."""
    if cell is not None:
        monkeypatch.setenv(CELL_ENV_VAR, cell)
    client = TestClient(build())

    ids = {client.post(path, json={}).json()[SESSION_ID_KEY] for path in ("/tool", "/verify", "/seed_session")}

    assert len(ids) == 1


def test_workers_accept_sessions_of_each_other_while_they_live() -> None:
    """Workers share a port, so a request may reach another worker than the one before. Here the other is our parent."""
    parent = os.getppid()
    alive = f"{parent:x}-{start_ticks(parent):x}.abc"
    reused = f"{parent:x}-{start_ticks(parent) - 1:x}.abc"

    assert post(build(), "/tool", cookie_of({SESSION_ID_KEY: alive})).json() == {SESSION_ID_KEY: alive}
    assert post(build(), "/tool", cookie_of({SESSION_ID_KEY: reused})).status_code == 410


def test_a_cell_refuses_the_sessions_of_every_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of another cell is not here, even if that cell lives; requests are routed before they arrive."""
    parent = os.getppid()
    life = f"{parent:x}-{start_ticks(parent):x}"
    monkeypatch.setenv(CELL_ENV_VAR, "1")

    for session in (f"0.{life}.abc", f"1.{life}.abc", f"{life}.abc", f"0.{OUR_LIFE}abc"):
        assert post(build(), "/tool", cookie_of({SESSION_ID_KEY: session})).status_code == 410, session


@pytest.mark.parametrize("policy", ["stateless", "shared", "cookie-only"])
def test_servers_without_state_in_memory_do_not_fail_needlessly(policy: str) -> None:
    """Nothing was lost with the earlier process."""
    answer = post(build(policy), "/verify", cookie_of({SESSION_ID_KEY: f"{EARLIER}abc", "kept": "in the cookie"}))

    assert answer.status_code == 200
    assert (answer.json().get("kept") == "in the cookie") == (policy == "cookie-only")


def test_a_session_id_that_a_handler_chose_belongs_to_a_life_too() -> None:
    """State under a chosen id is lost with the process like any other."""
    client = TestClient(build())
    client.post("/seed_session", json={"choose": "task-7"})

    assert client.post("/tool", json={}).json() == {SESSION_ID_KEY: "task-7"}
    for life, status in ((EARLIER, 410), (OUR_LIFE, 200)):
        assert post(build(), "/tool", cookie_of({SESSION_ID_KEY: "task-7"}, life)).status_code == status


def test_a_foreign_cookie_is_no_lost_session() -> None:
    """A cookie of another run or server says nothing about state, so it starts a new session as before."""
    foreign = SessionCodec("s3cret", "Server___two").encode({SESSION_ID_KEY: f"{EARLIER}a"})

    assert post(build(), "/tool", foreign).status_code == 200
    assert post(build(), "/tool", f"{foreign[:-1]}x").status_code == 200
