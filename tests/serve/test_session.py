"""Sessions: always an id, signed, never an error."""

import base64

import orjson
import pytest
from fastapi import Request
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st
from itsdangerous import TimestampSigner

from nemo_gym.errors import ConfigError
from nemo_gym.keys import SESSION_ID_KEY
from nemo_gym.serve import session as module
from nemo_gym.serve.app import create_app
from nemo_gym.serve.session import MAX_AGE_SECONDS, REFRESH_SECONDS, SessionCodec, SessionMiddleware, session_secret

COOKIE = "Server___one"


def client_for(policy="per-session", key=COOKIE, secret="s3cret") -> TestClient:
    app = create_app()
    app.add_middleware(SessionMiddleware, key=key, policy=policy, secret=secret)

    @app.get("/id")
    async def show(request: Request) -> dict[str, object]:
        return dict(request.session)

    @app.post("/put")
    async def put(request: Request) -> dict[str, object]:
        request.session.update(await request.json())
        return dict(request.session)

    @app.post("/clear")
    async def clear(request: Request) -> None:
        request.session.clear()

    return TestClient(app)


def test_a_caller_keeps_its_session_and_the_cookie_is_sent_every_time():
    """An agent that forwards cookies must meet the same state on every tool call."""
    client = client_for()
    first, second = client.get("/id"), client.get("/id")

    assert first.json()[SESSION_ID_KEY] == second.json()[SESSION_ID_KEY]
    assert COOKIE in first.cookies and COOKIE in second.cookies
    assert "httponly" in second.headers["set-cookie"]


def test_two_callers_have_two_sessions():
    """State of one rollout must never be visible to another."""
    assert client_for().get("/id").json() != client_for().get("/id").json()


def test_what_a_server_puts_into_the_session_comes_back():
    """Environments keep the state of an episode there, in any script."""
    client = client_for()
    client.post("/put", json={"level": 3, "größe": ["x"]})

    assert client.get("/id").json()["level"] == 3
    assert client.get("/id").json()["größe"] == ["x"]


def test_an_emptied_session_is_forgotten():
    """An environment that resets its state must not find the old one at the next call."""
    client = client_for()
    before = client.get("/id").json()
    client.post("/clear")

    assert client.get("/id").json() != before


@pytest.mark.parametrize(
    "forged",
    ["", "x", "a.b.c", "eyJzZXNzaW9uX2lkIjoiYWRtaW4ifQ.aaaaaa.bbbbbbbbbbbbbbbbbbbbbbbbbbb", "%00", '"', "=" * 50, "é"],
)
def test_a_forged_cookie_gets_a_fresh_session_never_an_error(forged: str):
    """Anybody can send anything; it must neither be believed nor break the server."""
    answer = client_for().get("/id", headers={"cookie": f"{COOKIE}={forged}".encode("latin-1")})

    assert answer.status_code == 200
    assert answer.json()[SESSION_ID_KEY] not in ("", "admin")


@given(st.binary(max_size=60))
@settings(max_examples=80, deadline=None)
def test_no_cookie_header_can_break_the_parser(raw: bytes):
    """A foreign or damaged cookie must start a new session, not fail the rollout."""
    scope = {"headers": [(b"cookie", raw)]}

    for value in module.cookie_values(scope, COOKIE):
        assert SessionCodec("s", COOKIE).decode(value) is None


def test_a_cookie_of_another_run_or_another_server_is_not_believed():
    """The secret is random per run, and a server accepts only what it signed itself."""
    cookie = SessionCodec("s3cret", COOKIE).encode({SESSION_ID_KEY: "mine"})

    assert SessionCodec("s3cret", COOKIE).decode(cookie) == {SESSION_ID_KEY: "mine"}
    assert SessionCodec("other", COOKIE).decode(cookie) is None
    assert SessionCodec("s3cret", "Server___two").decode(cookie) is None


def test_a_cookie_is_signed_once_and_anew_after_a_while(monkeypatch):
    """Signing each answer is slow, but a signature that is never renewed ends long episodes."""
    now = 1_000_000_000.0
    monkeypatch.setattr("itsdangerous.timed.time.time", lambda: now)
    codec = SessionCodec("s", COOKIE, clock=lambda: now)
    first = codec.encode({SESSION_ID_KEY: "a"})
    assert codec.encode({SESSION_ID_KEY: "a"}) is first

    now += REFRESH_SECONDS + 1
    second = codec.encode({SESSION_ID_KEY: "a"})
    assert second != first
    assert codec.decode(first) == codec.decode(second) == {SESSION_ID_KEY: "a"}

    now += MAX_AGE_SECONDS + 1
    assert codec.decode(first) is None
    assert codec.decode(second) is None


@given(st.text(max_size=30), st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2))
@settings(max_examples=50, deadline=None)
def test_cookies_are_signed_as_itsdangerous_signs(secret: str, extra: dict[str, str]):
    """Another process of the run may have another version of this package."""
    cookie = SessionCodec(secret, "server").encode({SESSION_ID_KEY: "one", **extra})

    payload = TimestampSigner(secret, salt="nemo-gym-session:server").unsign(cookie)

    assert orjson.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4))) == {
        SESSION_ID_KEY: "one",
        **extra,
    }


def test_memory_for_sessions_is_bounded(monkeypatch):
    """A server that lives for a million rollouts must not remember a million cookies."""
    monkeypatch.setattr(module, "CACHED_COOKIES", 10)
    codec = SessionCodec("s", COOKIE)
    cookies = [codec.encode({SESSION_ID_KEY: str(n)}) for n in range(50)]

    assert len(codec._cookie_by_id) == len(codec._id_by_cookie) == 10
    assert codec.decode(cookies[0]) == {SESSION_ID_KEY: "0"}


def test_stateless_means_no_cookie_and_a_new_id_each_time():
    """Servers without state save the signature, and no caller can depend on a session."""
    client = client_for("stateless")
    first, second = client.get("/id"), client.get("/id")

    assert "set-cookie" not in first.headers
    assert first.json()[SESSION_ID_KEY] != second.json()[SESSION_ID_KEY]


def test_shared_means_one_id_for_everybody():
    """Servers with one global state must not build one per caller."""
    first, second = client_for("shared").get("/id"), client_for("shared").get("/id")

    assert "set-cookie" not in first.headers
    assert first.json() == second.json()
    assert first.json()[SESSION_ID_KEY]


def test_an_unknown_policy_is_refused_with_the_known_ones():
    """A typo would otherwise mix the state of rollouts or lose it."""
    with pytest.raises(ConfigError, match="per-session, stateless, shared"):
        SessionMiddleware(lambda *_: None, key=COOKIE, policy="sticky")  # type: ignore[arg-type]


def test_a_name_that_no_cookie_may_have_still_works():
    """Instance ids may contain slashes; cookie names may not."""
    client = client_for(key="Server___my env/one")

    assert client.get("/id").json() == client.get("/id").json()


def test_processes_of_one_run_share_their_secret_by_environment(monkeypatch):
    """A worker that cannot verify the cookie of another would lose the session."""
    monkeypatch.delenv("NEMO_GYM_SESSION_SECRET", raising=False)
    own = session_secret()
    assert len(own) >= 32 and session_secret() == own

    monkeypatch.setenv("NEMO_GYM_SESSION_SECRET", "of-the-run")
    assert session_secret() == "of-the-run"
