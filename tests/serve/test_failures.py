"""Failed and late requests: one JSON answer that names the server that failed first."""

import asyncio
import json
import logging

import orjson
import pytest
from aiohttp import ClientResponseError, RequestInfo, TooManyRedirects
from fastapi import Request
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from nemo_gym.errors import DeadlineExceeded, EnvFailed, ServerUnreachable
from nemo_gym.keys import DEADLINE_HEADER, ROLLOUT_HEADER
from nemo_gym.rollouts.attribution import response_text
from nemo_gym.serve.app import create_app
from nemo_gym.serve.failures import MAX_INNER_CONTENT, DeadlineMiddleware, FailureMiddleware, attribution_headers
from nemo_gym.serve.process_status import own_status
from nemo_gym.transport import deadlines
from nemo_gym.transport.reply_log import attach_response, error_body
from nemo_gym.transport.response_errors import ERROR_HEADER, FAILED_HEADER, UPSTREAM_STATUS_HEADER

URL_ = URL("http://h:1/x")


def inner_error(content: bytes, **headers: str) -> ClientResponseError:
    info = RequestInfo(URL_, "POST", CIMultiDictProxy(CIMultiDict()), URL_)
    error = ClientResponseError(info, (), status=500, message="x", headers=CIMultiDictProxy(CIMultiDict(headers)))
    error.response_content = content  # type: ignore[attr-defined]
    return error


def client_raising(error: BaseException, **options) -> TestClient:
    app = create_app()

    @app.post("/verify")
    @app.post("/run")
    async def run(request: Request) -> None:
        raise error

    @app.post("/late")
    async def late(request: Request) -> StreamingResponse:
        async def chunks():
            yield b"begun"
            raise error

        return StreamingResponse(chunks())

    app.add_middleware(FailureMiddleware, server_name="my_agent", **options)
    return TestClient(app)


def test_an_exception_is_500_with_its_repr_and_one_traceback_in_the_log(caplog):
    """The caller learns what happened, the log learns where."""
    with caplog.at_level(logging.ERROR):
        answer = client_raising(ValueError("odd number")).post("/run")

    assert answer.status_code == 500
    assert answer.json() == "ValueError('odd number')"
    assert answer.headers[FAILED_HEADER] == "my_agent"
    assert len(caplog.records) == 1
    assert "Traceback" in caplog.text and "odd number" in caplog.text


def test_a_failed_inner_call_says_which_server_and_what_it_said():
    """The user must see the first cause, not a chain of 500s."""
    answer = client_raising(inner_error(b'"disk full"')).post("/run")

    assert answer.status_code == 500
    assert "my_agent" in answer.json() and "disk full" in answer.json()


def test_an_inner_error_that_was_cut_keeps_its_text_and_the_name_of_its_server():
    """What the model generated may be longer than the part of an error body that is read."""
    whole = orjson.dumps(error_body(error_with_response({"output": ["x" * 100]}), 'the "judge" is down \u00e9'))
    named = inner_error(whole[:-20], **{FAILED_HEADER: "judge"})

    answer = client_raising(named).post("/run")

    assert answer.headers[FAILED_HEADER] == "judge"
    assert answer.json().endswith(json.dumps('the "judge" is down \u00e9', ensure_ascii=False))
    assert response_text(named) == 'the "judge" is down \u00e9'


def error_with_response(response: dict) -> Exception:
    error = RuntimeError()
    attach_response(error, response)
    return error


def test_the_first_who_failed_is_named_through_every_hop():
    """Otherwise every failure of a judge is blamed on the agent in front of it."""
    named = inner_error(b"x", **{FAILED_HEADER: "judge"})

    assert client_raising(named).post("/run").headers[FAILED_HEADER] == "judge"
    assert client_raising(ServerUnreachable("gone", where="policy_model")).post("/run").headers[FAILED_HEADER] == (
        "policy_model"
    )
    assert client_raising(EnvFailed("bad")).post("/run").headers[FAILED_HEADER] == "my_agent"


@pytest.mark.parametrize(
    ("path", "status", "server", "upstream"), [("/run", 422, "env", "422"), ("/verify", 500, "my_agent", None)]
)
def test_only_who_passes_the_row_on_answers_that_the_row_is_refused(path, status, server, upstream):
    """The verifier makes the request to its judge; a malformed one is its mistake, and the row may be run again."""
    refused = inner_error(b"{}", **{FAILED_HEADER: "env"})
    refused.status = 422
    answer = client_raising(refused).post(path)

    assert answer.status_code == status
    assert (answer.headers[FAILED_HEADER], answer.headers.get(UPSTREAM_STATUS_HEADER)) == (server, upstream)


def test_a_passed_deadline_is_504():
    """The collector counts a timeout and a crash differently."""
    answer = client_raising(DeadlineExceeded("too late", where="judge")).post("/run")

    assert answer.status_code == 504
    assert "too late" in answer.json()


def test_secrets_are_in_neither_answer_nor_log(caplog):
    """Exceptions of HTTP libraries like to quote URLs and headers."""
    error = RuntimeError("GET http://user:hunter2@h/ with sk-abc")
    client = client_raising(error, redact=lambda text: text.replace("sk-abc", "****").replace("hunter2", "****"))

    with caplog.at_level(logging.ERROR):
        answer = client.post("/run")

    assert "hunter2" not in answer.text + caplog.text
    assert "sk-abc" not in answer.text + caplog.text


def test_by_default_credentials_in_urls_are_masked():
    """The text of the exception is stored with the rollout and may be published."""
    answer = client_raising(RuntimeError("http://user:hunter2@h/")).post("/run")

    assert "hunter2" not in answer.text


def test_sys_exit_in_a_verifier_fails_the_request_not_the_server():
    """One bad program under test must not end all other rollouts."""
    answer = client_raising(SystemExit(3)).post("/run")

    assert answer.status_code == 500
    assert "SystemExit" in answer.json()


def test_text_that_is_no_utf8_and_names_with_line_breaks_are_still_answered():
    """Header injection and encoding errors must not turn a failure into a crash."""
    answer = client_raising(EnvFailed("\ud800", where="a\r\nset-cookie: x=1")).post("/run")

    assert answer.status_code == 500
    assert "set-cookie" not in answer.headers
    assert isinstance(json.loads(answer.content), str)


@pytest.mark.asyncio
async def test_cancellation_is_not_an_answer():
    """Turning it into a 500 would keep cancelled work alive."""
    sent = []

    async def app(scope, receive, send):
        asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)
        await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    with pytest.raises(asyncio.CancelledError):
        await FailureMiddleware(app)({"type": "http", "method": "GET", "path": "/"}, None, send)
    assert sent == []


def test_a_failure_after_the_answer_began_breaks_the_connection():
    """Half an answer with status 200 must not look complete."""
    with pytest.raises(RuntimeError, match="mid-stream"):
        client_raising(RuntimeError("mid-stream")).post("/late")


def test_a_failed_inner_call_is_logged_without_its_headers(caplog):
    """The request's headers hold session cookies and keys."""
    info = RequestInfo(URL_, "POST", CIMultiDictProxy(CIMultiDict(Cookie="session=s3cret")), URL_)
    error = ClientResponseError(info, (), status=500, message="x")
    error.response_content = b"broken"  # type: ignore[attr-defined]

    with caplog.at_level(logging.ERROR):
        client_raising(error).post("/run")

    assert "http://h:1/x answered 500: broken" in caplog.text
    assert "s3cret" not in caplog.text


def test_a_redirect_in_a_circle_is_reported_without_its_headers(caplog):
    """The repr of this error of aiohttp contains the request headers, with session cookies and the run token."""
    info = RequestInfo(URL_, "POST", CIMultiDictProxy(CIMultiDict(Cookie="session=s3cret")), URL_)

    with caplog.at_level(logging.ERROR):
        answer = client_raising(TooManyRedirects(info, (), status=307)).post("/run")

    assert answer.json() == "http://h:1/x redirects again and again"
    assert "s3cret" not in answer.text + caplog.text


def test_an_exception_with_a_huge_text_is_logged_in_part(caplog):
    """A verifier may put a whole data set into its error; searching it for secrets would block the other servers."""
    searched = []

    def redact(text: str) -> str:
        searched.append(len(text))
        return text

    with caplog.at_level(logging.ERROR):
        answer = client_raising(ValueError("begin" + "x y " * 1_000_000 + "end"), redact=redact).post("/run")

    assert max(searched) <= MAX_INNER_CONTENT + 100
    assert answer.json().startswith("ValueError('begin")
    assert "begin" in caplog.text and "end" in caplog.text


@pytest.mark.parametrize("cut", [MAX_INNER_CONTENT // 2, 2000])
def test_a_secret_at_a_cut_is_not_logged_in_part(caplog, cut):
    """Half a key is no longer the text that is masked, and the other half may be in another log."""
    secret = "key-0123456789-abcdefghij"

    def redact(text: str) -> str:
        return text.replace(secret, "****")

    for before in range(cut - len(secret) - 120, cut + 8, 12):
        text = "." * before + secret + "." * (MAX_INNER_CONTENT * 2)
        error = ValueError(text)
        if cut == 2000:
            error = inner_error(text[:20_000].encode())
        with caplog.at_level(logging.ERROR):
            client_raising(error, redact=redact).post("/run")

    assert "key-0" not in caplog.text
    assert len(caplog.records) > 5


class Introspective(Exception):
    """An exception whose text is the request that is running."""

    def __repr__(self) -> str:
        return str(own_status.running_handler())

    __str__ = __repr__


def test_the_text_of_an_exception_belongs_to_the_request_that_raised_it():
    """A text that never ends blocks the cell; without a request, innocent rollouts would count the attempt."""
    answer = client_raising(Introspective()).post("/verify", headers={ROLLOUT_HEADER: "7-1"})

    assert answer.json() == "my_agent: POST /verify of rollout 7-1"
    assert own_status.running_handler() is None


def test_a_stream_belongs_to_its_request():
    """Starlette runs streams in other tasks; one that blocks its cell must not cost other rollouts an attempt."""
    app = create_app()

    @app.post("/verify")
    async def verify(request: Request) -> StreamingResponse:
        async def chunks():
            for _ in range(2):
                yield f"{own_status.running_handler()};"
                await asyncio.sleep(0)

        return StreamingResponse(chunks())

    app.add_middleware(FailureMiddleware, server_name="my_agent")

    answer = TestClient(app).post("/verify", headers={ROLLOUT_HEADER: "7-1"})

    assert answer.text == "my_agent: POST /verify of rollout 7-1;" * 2
    assert own_status.running_handler() is None


def client(log: list[str]) -> TestClient:
    app = create_app()

    @app.get("/left")
    async def report_left() -> float | None:
        return deadlines.seconds_left()

    @app.get("/wait")
    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            log.append("stopped")

    @app.get("/own")
    async def own() -> None:
        raise TimeoutError("of the handler's own making")

    app.add_middleware(DeadlineMiddleware, server_name="env")
    app.add_middleware(FailureMiddleware, server_name="env")
    return TestClient(app)


def test_the_callers_deadline_is_known_inside():
    """Inner calls can then stop in time instead of working for an answer that comes too late."""
    answer = client([]).get("/left", headers={DEADLINE_HEADER: "30"}).json()

    assert 0 < answer <= 30


@pytest.mark.parametrize("headers", [{}, {DEADLINE_HEADER: "soon"}, {DEADLINE_HEADER: "-3"}])
def test_without_a_readable_deadline_there_is_none(headers):
    """Other clients send no header or a wrong one; their requests must not be cancelled."""
    assert client([]).get("/left", headers=headers).json() is None


def test_work_nobody_waits_for_is_cancelled_and_answered_504():
    """Abandoned work would otherwise occupy the server while new rollouts wait."""
    log: list[str] = []

    answer = client(log).get("/wait", headers={DEADLINE_HEADER: "0.02"})

    assert answer.status_code == 504
    assert log == ["stopped"]


def test_a_timeout_of_the_handlers_own_is_not_mistaken_for_the_deadline():
    """A tool's own timeout is a 500 of that tool, not of the caller's patience."""
    answer = client([]).get("/own", headers={DEADLINE_HEADER: "60"})

    assert answer.status_code == 500


@pytest.mark.asyncio
async def test_the_error_names_the_server():
    """A timeout without a name does not say which server was slow."""

    async def app(scope, receive, send):
        await asyncio.Event().wait()

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(DEADLINE_HEADER.encode(), b"0")]}
    with pytest.raises(DeadlineExceeded) as caught:
        await DeadlineMiddleware(app, server_name="env")(scope, None, None)
    assert caught.value.where == "env"


@pytest.mark.parametrize(
    ("status", "header"), [(302, UPSTREAM_STATUS_HEADER), (401, UPSTREAM_STATUS_HEADER), (200, ERROR_HEADER)]
)
def test_the_status_of_an_error_is_kept_also_that_of_a_redirect(status, header):
    """A run stops when its endpoint redirects every call to a page, which the collector knows by the status only."""
    error = inner_error(b"")
    error.status = status

    headers = attribution_headers(error, "policy_model", "/v1/responses")

    assert [name for name in (UPSTREAM_STATUS_HEADER, ERROR_HEADER) if name in headers] == [header]
