"""The one path of a call through a server: `handle` turns a `Call` into exactly one `Reply`.

A call to a plain JSON endpoint runs directly: deadline, allowance and rollout are set in a context of its handler, the
session is opened, the body validated, the handler run, and the answer handed over as a model or bytes. The in-process
and cell-link carriers call `handle`; `serve_http` is the ASGI adapter that takes the same path for uvicorn.

Everything else goes through the app's own ASGI stack: other endpoints, and the unusual outcomes of plain ones (an
exception, a response the handler made, cookies or a status it set), which enter the stack where the endpoint would have
produced them. So there is one implementation of what callers see of them. An app is handled here only if all its
middleware is ours, unchanged and in its place; with a subclass, foreign middleware, a foreign route class or a root
path every call goes through the stack.
"""

import asyncio
import re
from collections.abc import Awaitable, Coroutine, Generator, Mapping, Sequence
from contextvars import Context
from typing import Any, Generic, Protocol, TypeVar

from fastapi import FastAPI, Response
from starlette.types import Receive, Scope, Send

from nemo_gym.errors import DeadlineExceeded
from nemo_gym.keys import DEADLINE_HEADER
from nemo_gym.serve.blocked_loop import handlers_by_task
from nemo_gym.serve.correlation import ROLLOUT_PREFIX_SCOPE_KEY, ROLLOUT_PREFIX_START, adopt_rollout, split_path
from nemo_gym.serve.endpoints import OUTCOME_KEY, EndpointOutcome, EndpointPlan, EndpointRouter, is_json_type
from nemo_gym.serve.requests import CallRequest, GymRequest
from nemo_gym.serve.session import COOKIE_ATTRIBUTES, SessionMiddleware, cookie_values
from nemo_gym.transport import call_log, deadlines
from nemo_gym.transport.asgi import collect_reply, run_app, scope_of, write_reply
from nemo_gym.wire.call_reply import Call, Reply

_REQUEST_HEADERS = frozenset(
    {"accept", "content-encoding", "content-length", "content-type", "cookie", DEADLINE_HEADER, "host"}
)
"""Headers about the body, the session or the deadline; a call that sets one itself goes through the ASGI stack."""

_UNUSUAL = (Response, BaseException)

Result = TypeVar("Result")


class Layer(Protocol):
    """A middleware as an app lists it: its class and arguments."""

    @property
    def cls(self) -> Any: ...

    @property
    def kwargs(self) -> Mapping[str, Any]: ...


def has_only_known_layers(layers: Sequence[Layer]) -> bool:
    """Return whether these layers, outermost first, are ours, each in its place and without a capture store."""
    names = [vars(layer.cls).get("LAYER") for layer in layers]
    inner = names[2:]
    return (
        names[:2] == ["failures", "deadline"]
        and None not in inner
        and set(inner) <= {"session", "rollout"}
        and len(set(inner)) == len(inner)
        and all(layer.kwargs.get("store") is None for layer in layers)
    )


class run_in_context(Generic[Result]):  # noqa: N801 - awaited like a function, once for every call
    """`await run_in_context(coroutine, context)`: run a coroutine in this task, but with other context variables.

    A handler called in memory must not see or change its caller's context variables, because over HTTP it could not. A
    separate task costs more than most handlers; stepping the coroutine in another context does the same. Cancelling the
    task cancels the coroutine.
    """

    __slots__ = ("_context", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, Result], context: Context) -> None:
        self._coroutine = coroutine
        self._context = context

    def __await__(self) -> Generator[Any, Any, Result]:
        step, coroutine = self._context.run, self._coroutine
        try:
            future = step(coroutine.send, None)
            while True:
                try:
                    value = yield future
                except GeneratorExit:
                    step(coroutine.close)
                    raise
                except BaseException as error:  # usually a cancellation, which the coroutine must handle
                    future = step(coroutine.throw, error)
                else:
                    future = step(coroutine.send, value)
        except StopIteration as end:
            result: Result = end.value
            return result


class CallHandler:
    """Answers the calls to one app."""

    def __init__(
        self,
        app: FastAPI,
        router: EndpointRouter,
        session: SessionMiddleware | None,
        server_name: str,
        *,
        has_rollout_prefixes: bool,
    ) -> None:
        self.app = app
        self.router = router
        self.server_name = server_name
        self.has_sessions = session is not None
        self._session = session
        self._has_rollout_prefixes = has_rollout_prefixes
        self._reads_cookies = session is not None and session.policy != "stateless"
        self._sets_cookies = session is not None and session.policy == "per-session"

    def handle(self, call: Call, alarm: deadlines.Alarm | None = None) -> Awaitable[Reply]:
        """Answer a call. Given the caller's `alarm`, the caller enforces the deadline; otherwise this method does."""
        plan, prefix = self._find_plan(call.method, call.path)
        if plan is None or (call.headers and not _REQUEST_HEADERS.isdisjoint(map(str.lower, call.headers))):
            return run_app(self.app, call, caller_keeps_time=alarm is not None)
        body: Any = call.body
        if type(body) is not bytes and not plan.takes_models and plan.body_name is not None:
            fields = plan.body_fields.extract(body) if plan.body_fields is not None else None
            body = call.body_bytes() if fields is None else fields
        if alarm is None:
            work = self._run_in_time(call, plan, body, prefix)
        else:
            work = self._run(call, plan, body, alarm, prefix)
        return run_in_context(work, Context())  # type: ignore[arg-type]  # an outcome only leaves `serve_http`

    async def serve_http(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer an HTTP request for a plain JSON endpoint; False leaves the request to the app's ASGI stack."""
        plan, prefix = self._find_plan(scope["method"], scope["path"])
        if plan is None or scope.get("root_path"):
            return False
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if plan.body is not None and not is_json_type(headers.get("content-type", "")):
            return False
        request = GymRequest(self._route_scope(dict(scope), plan, prefix), receive, send)
        seconds = deadlines.parse_seconds(headers.get(DEADLINE_HEADER))
        call = Call(scope["method"], "", scope["path"], headers=headers, server=self.server_name, seconds=seconds)
        outcome = await self._run_in_time(call, plan, None, prefix, request)
        if isinstance(outcome, Reply):
            await write_reply(outcome, send)
            return True
        scope[OUTCOME_KEY] = outcome
        return False

    def _find_plan(self, method: str, path: str) -> tuple[EndpointPlan | None, re.Match[str] | None]:
        """Return the plan for a path and the rollout prefix that the path begins with."""
        prefix = None
        if self._has_rollout_prefixes and path.startswith(ROLLOUT_PREFIX_START):
            path, prefix = split_path(path)
        plan = self.router.plan(method, path)
        return (plan if plan is not None and plan.has_plain_path else None), prefix

    async def _run_in_time(
        self,
        call: Call,
        plan: EndpointPlan,
        body: Any,
        prefix: re.Match[str] | None,
        request: GymRequest | None = None,
    ) -> Reply | EndpointOutcome:
        """Run the endpoint and enforce the deadline of the call."""
        if call.seconds is None:
            return await self._run(call, plan, body, None, prefix, request)
        try:
            with deadlines.Alarm(call.seconds) as alarm:
                return await self._run(call, plan, body, alarm, prefix, request)
        except TimeoutError:
            if not alarm.has_rung:
                raise
        problem = f"{call.method} {call.path} was not done within the {call.seconds:.1f} s its caller allowed"
        late = DeadlineExceeded(problem, where=alarm.awaited_server or self.server_name or None)
        return await self._finish(call, EndpointOutcome(late, None), request)

    async def _finish(
        self, call: Call, outcome: EndpointOutcome, request: GymRequest | None
    ) -> Reply | EndpointOutcome:
        """Send an unusual outcome through the app's stack; for HTTP the caller does that with the real connection."""
        if request is not None and not isinstance(request, CallRequest):
            return outcome
        scope = scope_of(call, caller_keeps_time=True)
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
        """Run the endpoint in the current context, which is new and belongs to this call."""
        _adopt_caller(call, alarm, prefix)
        session: dict[str, Any] | None = None
        if request is not None:
            self._open_http_session(request)
        elif self._reads_cookies and self._session is not None:
            cookie = call.cookie(self._session.cookie_name)
            session = self._session.open_session(() if cookie is None else (cookie,))
        task = alarm.task if alarm is not None else asyncio.current_task()
        outer = handlers_by_task.get(task)
        handlers_by_task[task] = (self.server_name, call.method, call.path)
        try:
            if request is None and plan.request_name is not None:
                request = CallRequest(self, call, plan, session)
            if plan.body is not None:
                body = plan.validate_body(await request.body() if body is None and request is not None else body)
            injected = plan.new_response() if plan.response_name is not None else None
            answer = await (plan.raw_handler or plan.endpoint)(**plan.arguments(body, request, injected))
            result: Any = plan.result(answer, injected)
        except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # the boundary of a server, also for `sys.exit` in a verifier
            result = error
        finally:
            if outer is None:
                handlers_by_task.pop(task, None)
            else:
                handlers_by_task[task] = outer
        if request is not None:
            session = request.final_session()
        reply = self._plain_reply(result, session)
        return reply or await self._finish(call, EndpointOutcome(_as_response(result), session), request)

    def _open_http_session(self, request: GymRequest) -> None:
        if self._session is not None:
            cookies = cookie_values(request.scope, self._session.cookie_name)
            request.scope["session"] = self._session.open_session(cookies)

    def _plain_reply(self, result: Any, session: dict[str, Any] | None) -> Reply | None:
        """Return the reply, if neither the result nor the session needs the app's middleware."""
        if isinstance(result, _UNUSUAL):
            return None
        cookie = None
        if self._sets_cookies and self._session is not None:
            try:
                if not session:
                    return None
                cookie = (self._session.cookie_name, self._session.codec.encode(session), COOKIE_ATTRIBUTES)
            except TypeError:  # the session holds something that is not JSON
                return None
        return Reply(200, result, cookie=cookie)

    def new_session(self) -> dict[str, Any]:
        assert self._session is not None
        return self._session.open_session(())

    def scope_for(self, call: Call, plan: EndpointPlan) -> Scope:
        """Return the scope of a call that came without HTTP, as its handler would see it."""
        prefix = split_path(call.path)[1] if len(call.path) > len(plan.route.path) else None
        return self._route_scope(scope_of(call, caller_keeps_time=True), plan, prefix)

    def _route_scope(self, scope: dict[str, Any], plan: EndpointPlan, prefix: re.Match[str] | None) -> dict[str, Any]:
        """Add to a scope what the middleware and the router of the app would add."""
        if prefix is not None:
            path = plan.route.path
            scope |= {"path": path, "raw_path": path.encode("ascii"), ROLLOUT_PREFIX_SCOPE_KEY: prefix[0]}
        return scope | self.router.route_scope(plan) | {"app": self.app}


def _as_response(result: Any) -> Response | BaseException:
    if isinstance(result, _UNUSUAL):
        return result
    body = result if isinstance(result, bytes) else result.model_dump_json(by_alias=True).encode()
    return Response(body, media_type="application/json")


def _adopt_caller(call: Call, alarm: deadlines.Alarm | None, prefix: re.Match[str] | None) -> None:
    """Set deadline, allowance and rollout of a call in the current context."""
    if alarm is not None:
        deadlines.adopt_alarm(alarm)
    if call.headers:
        deadlines.adopt_allowance(call.headers)
    if call.rollout is not None:
        call_log.set_current_rollout(call.rollout)
    if prefix is not None:
        adopt_rollout(prefix)
