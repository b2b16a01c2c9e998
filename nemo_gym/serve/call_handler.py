"""The path of a call through a server: `CallHandler.handle` turns a `Call` into a `Reply`.

A call to a plain JSON endpoint runs directly: set deadline, allowance and rollout in a new context, open the session,
validate the body, run the handler, and return its answer as a model or bytes. The in-process and cell-link carriers
call `handle`; `serve_http` is the ASGI adapter that takes the same path for uvicorn.

All other calls go through the ASGI stack of the app. So do the unusual outcomes of plain JSON endpoints (an exception,
a response object, cookies or a status set by the handler): they enter the stack at the position of the endpoint, so
that responses have one implementation. An app has a `CallHandler` only if all its middleware is ours, unmodified and in
the expected order; with a subclass of the app, other middleware or a root path, every call goes through the stack.

`CallRequest` sets private attributes of starlette's `Request`; `tests/serve/test_dependencies.py` fails when they
change.
"""

import asyncio
import re
from collections.abc import Awaitable, Mapping, Sequence
from contextvars import Context
from typing import Any, Protocol

from fastapi import FastAPI, Response
from starlette.types import Message, Receive, Scope, Send

from nemo_gym.errors import SessionLost
from nemo_gym.keys import DEADLINE_HEADER, ROLLOUT_HEADER
from nemo_gym.serve.correlation import (
    MODEL_ENDPOINTS,
    ROLLOUT_PREFIX_SCOPE_KEY,
    ROLLOUT_PREFIX_START,
    adopt_rollout,
    split_path,
)
from nemo_gym.serve.endpoints import (
    OUTCOME_KEY,
    EndpointOutcome,
    EndpointPlan,
    EndpointRouter,
    GymRequest,
    is_json_type,
)
from nemo_gym.serve.failures import request_deadline_exceeded
from nemo_gym.serve.process_status import handler_label, handler_name, own_status, run_handler
from nemo_gym.serve.session import COOKIE_ATTRIBUTES, SessionMiddleware, cookie_values
from nemo_gym.transport import call_timing, deadlines
from nemo_gym.transport.asgi import collect_reply, run_app, scope_of, write_reply
from nemo_gym.transport.event_loop import handler_error
from nemo_gym.wire.call_reply import Call, Reply, encode_model

_REQUEST_HEADERS = frozenset(
    {"accept", "content-encoding", "content-length", "content-type", "cookie", DEADLINE_HEADER, "host"}
)
"""Headers about the body, the session or the deadline. A call that sets one of them goes through the ASGI stack."""

_UNUSUAL = (Response, BaseException)


class WholeResponse(Response):
    """A response without background tasks: its body and headers are sent without the ASGI stack."""


class Layer(Protocol):
    """An entry of `app.user_middleware`: the class and arguments of a middleware."""

    @property
    def cls(self) -> Any: ...

    @property
    def kwargs(self) -> Mapping[str, Any]: ...


def has_only_known_layers(layers: Sequence[Layer]) -> bool:
    """Return True if all layers are ours, in the expected order and without a capture store.

    `layers` start with the outermost. `session` and `rollout` are optional and may have any order.
    """
    names = [vars(layer.cls).get("LAYER") for layer in layers]
    inner_names = names[2:]
    return (
        names[:2] == ["failures", "deadline"]
        and None not in inner_names
        and set(inner_names) <= {"session", "rollout"}
        and len(set(inner_names)) == len(inner_names)
        and all(layer.kwargs.get("store") is None for layer in layers)
    )


class CallRequest(GymRequest):
    """The request object of a call without HTTP. Scope, headers and a new session are built on first access."""

    def __init__(self, handler: "CallHandler", call: Call, plan: EndpointPlan, session: dict[str, Any] | None) -> None:
        self._handler = handler
        self._call = call
        self._plan = plan
        self._session = session
        self._scope: Scope | None = None
        self._body_was_read = False
        self._stream_consumed = False
        self._is_disconnected = False

    @property
    def scope(self) -> Scope:  # type: ignore[override]
        if self._scope is None:
            self._scope = self._handler.scope_for(self._call, self._plan)
            if self._handler.sessions is not None:
                self._scope["session"] = self.session
        return self._scope

    @property
    def session(self) -> dict[str, Any]:
        sessions = self._handler.sessions
        if sessions is None or (self._scope is not None and "session" in self._scope):
            session: dict[str, Any] = super().session
            return session
        if self._session is None:
            self._session = sessions.open_session(())
        return self._session

    @property
    def cookies(self) -> dict[str, str]:
        if self._scope is None and not self._call.cookies:
            return {}
        return super().cookies

    def final_session(self) -> dict[str, Any] | None:
        return self._session if self._scope is None else self._scope.get("session")

    async def _receive(self) -> Message:
        """Return the body first, then wait: the caller stays connected until this task is cancelled.

        A method instead of starlette's instance attribute `_receive`, because an attribute that holds a bound method
        of the same object is a reference cycle.
        """
        if self._body_was_read:
            disconnected: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
            return await disconnected  # never set
        self._body_was_read = True
        return {"type": "http.request", "body": self._call.body_bytes(), "more_body": False}


class CallHandler:
    """Answers calls to the plain JSON endpoints of one app; passes other calls to its ASGI stack."""

    def __init__(
        self,
        app: FastAPI,
        router: EndpointRouter,
        sessions: SessionMiddleware | None,
        server_name: str,
        *,
        has_rollout_prefixes: bool,
    ) -> None:
        self.app = app
        self.router = router
        self.server_name = server_name
        self.sessions = sessions
        self._has_rollout_prefixes = has_rollout_prefixes
        self._handler_names: dict[str, bytes] = {}  # by path
        self._reads_cookies = sessions is not None and sessions.policy != "stateless"
        self._sets_cookies = sessions is not None and sessions.has_cookie

    def handle(self, call: Call, alarm: deadlines.Alarm | None = None) -> Awaitable[Reply]:
        """Answer a call. With `alarm` the caller enforces the deadline, otherwise this method does."""
        plan, prefix = self._find_plan(call.method, call.path)
        if plan is None or (call.headers and not _REQUEST_HEADERS.isdisjoint(map(str.lower, call.headers))):
            return run_app(self.app, call, caller_enforces_deadline=alarm is not None)
        body: Any = call.body
        if type(body) is not bytes and not plan.accepts_pydantic and plan.body_name is not None:
            # A model of the sender: its fields, or the model as JSON, become the input of the receiver.
            fields = plan.body_fields.extract(body) if plan.body_fields is not None else None
            body = call.body_bytes() if fields is None else fields
        label = handler_label(self._handler_names.get(plan.route.path) or self._name(plan), call.rollout)
        if alarm is None:
            return run_handler(self._run_within_deadline(call, plan, body, prefix), label, Context())  # type: ignore[arg-type]  # a Reply, because no `request` is passed
        return run_handler(self._run(call, plan, body, alarm, prefix), label, Context(), alarm.task)  # type: ignore[arg-type]

    async def serve_http(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer an HTTP request to a plain JSON endpoint; False if the app's ASGI stack must answer it."""
        plan, prefix = self._find_plan(scope["method"], scope["path"])
        if plan is None or scope.get("root_path"):
            return False
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if plan.body is not None and not is_json_type(headers.get("content-type", "")):
            return False
        request = GymRequest(self._route_scope(dict(scope), plan, prefix), receive, send)
        if self.sessions is not None:
            cookies = cookie_values(scope, self.sessions.cookie_name)
            try:
                request.scope["session"] = self.sessions.open_session(cookies, plan.route.path)
            except SessionLost:
                return False  # the stack raises it again and answers it
        seconds = deadlines.parse_seconds(headers.get(DEADLINE_HEADER))
        rollout = call_timing.parse_rollout(headers.get(ROLLOUT_HEADER))
        call = Call(scope["method"], "", scope["path"], b"", headers, None, self.server_name, rollout, seconds)
        work = self._run_within_deadline(call, plan, None, prefix, request)
        label = handler_label(self._name(plan), rollout)
        outcome = await run_handler(work, label)
        if isinstance(outcome, Reply):
            try:
                with own_status.showing(label):  # a model may have serializers of the server
                    outcome.body = outcome.body_bytes()
            except Exception as error:  # a value that JSON cannot express, such as half of a surrogate pair
                outcome = EndpointOutcome(error, None)
            else:
                await write_reply(outcome, send)
                return True
        scope[OUTCOME_KEY] = outcome
        return False

    def _name(self, plan: EndpointPlan) -> bytes:
        """Return the name of a handler in `process_status`, which is the same for all its requests."""
        path = plan.route.path
        name = self._handler_names.get(path)
        if name is None:
            name = self._handler_names[path] = handler_name(self.server_name, " ".join(plan.route.methods or ()), path)
        return name

    def _find_plan(self, method: str, path: str) -> tuple[EndpointPlan | None, re.Match[str] | None]:
        """Return the plan of the endpoint at a path, and the rollout prefix of the path; each None if absent."""
        if not self._has_rollout_prefixes or not path.startswith(ROLLOUT_PREFIX_START):
            return self.router.plain_plan(method, path), None
        path, prefix = split_path(path)
        if prefix is not None and prefix["tokens"] is not None and path not in MODEL_ENDPOINTS:
            return None, prefix  # the middleware notes requests that token capture does not see
        return self.router.plain_plan(method, path), prefix

    async def _run_within_deadline(
        self, call: Call, plan: EndpointPlan, body: Any, prefix: re.Match[str] | None, request: GymRequest | None = None
    ) -> Reply | EndpointOutcome:
        """Run the endpoint; if the deadline of the call passes, cancel it and answer with `DeadlineExceeded`."""
        if call.seconds is None:
            return await self._run(call, plan, body, None, prefix, request)
        try:
            with deadlines.Alarm(call.seconds) as alarm:
                return await self._run(call, plan, body, alarm, prefix, request)
        except TimeoutError:
            if not alarm.has_fired:
                raise
        where = alarm.awaited_server or self.server_name or None
        error = request_deadline_exceeded(call.method, call.path, call.seconds, where)
        return await self._finish(call, EndpointOutcome(error, None), request)

    async def _finish(
        self, call: Call, outcome: EndpointOutcome, request: GymRequest | None
    ) -> Reply | EndpointOutcome:
        """Send an unusual outcome through the app's stack and return the reply.

        For an HTTP request, return the outcome: `serve_http` puts it into the scope, and the stack sends it on the real
        connection.
        """
        if request is not None and not isinstance(request, CallRequest):
            return outcome
        scope = scope_of(call, caller_enforces_deadline=True)  # the endpoint has run: the stack needs no alarm
        scope[OUTCOME_KEY] = outcome
        return await collect_reply(self.app, call, scope)

    async def _run(
        self,
        call: Call,
        plan: EndpointPlan,
        body: Any,
        alarm: deadlines.Alarm | None,
        prefix: re.Match[str] | None,
        request: GymRequest | None = None,
    ) -> Reply | EndpointOutcome:
        """Run the endpoint in the current context, which must be new: open the session, validate, call, reply."""
        deadlines.adopt_caller(alarm, call.headers)
        if call.rollout is not None:
            call_timing.set_current_rollout(call.rollout)
        if prefix is not None:
            adopt_rollout(prefix)
        session: dict[str, Any] | None = None
        try:
            if request is None:
                if self._reads_cookies and self.sessions is not None:
                    cookie = call.cookie(self.sessions.cookie_name)
                    session = self.sessions.open_session(() if cookie is None else (cookie,), plan.route.path)
                if plan.request_name is not None:
                    request = CallRequest(self, call, plan, session)
            if plan.body is not None:
                body = plan.validate_body(await request.body() if body is None and request is not None else body)
            injected = None if plan.response_name is None else plan.new_response()
            result: Any = plan.result(await plan.handler(**plan.arguments(body, request, injected)), injected)
        except BaseException as error:
            if isinstance(error, GeneratorExit) and _is_raised_here(error):
                raise  # this coroutine is closed
            result = await handler_error(error)
        if request is not None:
            session = request.final_session()
        reply = self._plain_reply(result, session)
        return reply or await self._finish(call, EndpointOutcome(_as_response(result), session), request)

    def _plain_reply(self, result: Any, session: dict[str, Any] | None) -> Reply | None:
        """Return the reply; None if the result or the session must go through the app's middleware."""
        is_unusual = isinstance(result, _UNUSUAL)
        if is_unusual and type(result) is not WholeResponse:
            return None
        cookie = None
        if self._sets_cookies:
            if not session:  # the middleware deletes the cookie of an emptied session
                return None
            sessions = self.sessions
            assert sessions is not None
            try:
                cookie = (sessions.cookie_name, sessions.codec.encode(session), COOKIE_ATTRIBUTES)
            except TypeError:  # the session contains a value that is not JSON
                return None
        return _whole_reply(result, cookie) if is_unusual else Reply(200, result, cookie=cookie)

    def scope_for(self, call: Call, plan: EndpointPlan) -> Scope:
        """Return the ASGI scope that the handler of a call would receive over HTTP."""
        prefix = split_path(call.path)[1] if call.path != plan.route.path else None
        return self._route_scope(scope_of(call, caller_enforces_deadline=True), plan, prefix)

    def _route_scope(self, scope: dict[str, Any], plan: EndpointPlan, prefix: re.Match[str] | None) -> dict[str, Any]:
        """Return the scope with the entries that the middleware and the router of the app would add."""
        if prefix is not None:
            path = plan.route.path
            scope |= {"path": path, "raw_path": path.encode("ascii"), ROLLOUT_PREFIX_SCOPE_KEY: prefix[0]}
        return scope | self.router.route_scope(plan) | {"app": self.app}


def _is_raised_here(error: BaseException) -> bool:
    """Return True if an exception was raised in the function that catches it, not in code that the function calls."""
    return error.__traceback__ is None or error.__traceback__.tb_next is None


def _whole_reply(response: WholeResponse, cookie: tuple[str, str, str] | None) -> Reply:
    """Return a response with its status and headers as a reply that sets the session cookie."""
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.raw_headers]
    if cookie is not None:
        name, value, attributes = cookie
        headers.append(("set-cookie", f"{name}={value}; {attributes}"))
    return Reply(response.status_code, bytes(response.body), headers=headers, cookie=cookie)


def _as_response(result: Any) -> Response | BaseException:
    """Return a response or exception unchanged, and a model or bytes as a JSON response."""
    if isinstance(result, _UNUSUAL):
        return result
    try:
        body = result if isinstance(result, bytes) else encode_model(result)
    except Exception as error:  # a model may contain values that JSON cannot express
        return error
    return Response(body, media_type="application/json")
