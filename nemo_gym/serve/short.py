"""The way of a call between two servers of one process, around ASGI.

Inside a cell most calls are a model or plain data sent as JSON to one of the endpoints our servers consist of. Scopes,
messages, headers and tasks cost several times what such an endpoint does, and nobody looks at them. `ShortWay`
validates the body, gives the handler its session, deadline and rollout, and hands its answer over.

Everything out of the ordinary (an exception, a response of the handler's own, cookies it sets) is sent through the
app's real layers, as if the endpoint had just produced it: there is one implementation of what callers see of it.
`knows_short_way` says which apps qualify: a layer we do not know disqualifies one.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Mapping, Sequence
from contextvars import Context
from typing import Any, Protocol

from fastapi import FastAPI, HTTPException, Response
from pydantic import BaseModel
from starlette.types import Message, Scope

from nemo_gym.net import allowance, deadline, local
from nemo_gym.net.handed import Handed
from nemo_gym.net.isolated import Isolated
from nemo_gym.net.local_request import Sent
from nemo_gym.net.local_response import LocalResponse, ShortResponse
from nemo_gym.serve.correlation import ROLLOUT_PREFIX_SCOPE_KEY, begin_rollout, split_path
from nemo_gym.serve.direct import ABSENT, PREPARED, DirectRouter, Plan, Prepared, not_json, validated_body
from nemo_gym.serve.endpoints import json_response
from nemo_gym.serve.requests import LARGEST_BODY, GymRequest, parse_json
from nemo_gym.serve.session import COOKIE_ATTRIBUTES, SessionMiddleware

_NOT_ORDINARY = (Response, BaseException)
_ORDINARY_PATH = re.compile(r"(/[A-Za-z0-9_-][A-Za-z0-9_.~-]*)+")
"""Paths that no client, and no server, would write differently."""


class Layer(Protocol):
    """A middleware as an app lists it: its class and what it is made with."""

    @property
    def cls(self) -> Any: ...

    @property
    def kwargs(self) -> Mapping[str, Any]: ...


def knows_short_way(layers: Sequence[Layer]) -> bool:
    """Whether these layers, outermost first, are ours, each in its place and with nothing special to do."""
    kinds = [vars(layer.cls).get("SHORT_WAY") for layer in layers]
    inner = kinds[2:]
    return (
        kinds[:2] == ["failures", "deadline"]
        and None not in inner
        and set(inner) <= {"session", "rollout"}
        and len(set(inner)) == len(inner)
        and all(layer.kwargs.get("store") is None for layer in layers)
    )


class ShortRequest(GymRequest):
    """The request as a handler sees it. Its scope, and with it the headers, is made when it is asked for."""

    def __init__(self, way: "ShortWay", sent: Sent, plan: Plan, session: dict[str, Any] | None) -> None:
        self._way = way
        self._sent = sent
        self._plan = plan
        self._session = session
        self._scope: Scope | None = None
        self._receive = self._receive_once
        self._stream_consumed = False
        self._is_disconnected = False

    @property
    def scope(self) -> Scope:  # type: ignore[override]
        if self._scope is None:
            self._scope = self._way.scope(self._sent, self._plan)
            if self._way.session is not None:
                self._scope["session"] = self._opened()
        return self._scope

    @property
    def session(self) -> dict[str, Any]:
        if self._scope is not None or self._way.session is None:
            found: dict[str, Any] = super().session
            return found
        return self._opened()

    @property
    def cookies(self) -> dict[str, str]:
        if self._scope is None and not self._sent.cookies:
            return {}
        return super().cookies

    def _opened(self) -> dict[str, Any]:
        """The session, begun now unless it was before: one without cookies is not missed until it is looked at."""
        if self._session is None and self._way.session is not None:
            self._session = self._way.session.session_of(())
        assert self._session is not None
        return self._session

    def session_afterwards(self) -> dict[str, Any] | None:
        """The session as the handler left it; it may have put another one in its place."""
        return self._session if self._scope is None else self._scope.get("session")

    async def _receive_once(self) -> Message:
        self._receive = _wait_for_ever
        return {"type": "http.request", "body": self._sent.written(), "more_body": False}


async def _wait_for_ever() -> Message:
    gone: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    return await gone  # the caller is there until this task is cancelled


class ShortWay:
    """Calls the simple endpoints of one app for callers in its process."""

    def __init__(
        self, app: FastAPI, router: DirectRouter, session: SessionMiddleware | None, server_name: str, rollouts: bool
    ) -> None:
        self.app = app
        self.router = router
        self.session = session
        self.server_name = server_name
        self._rollouts = rollouts
        self._reads_cookies = session is not None and session.policy != "stateless"
        self._sets_cookies = session is not None and session.policy == "per-session"
        self._ordinary: dict[str, bool] = {}

    def __call__(self, sent: Sent, watched: deadline.Alarm) -> Awaitable[LocalResponse] | None:
        """The answer to a call, to be awaited; None if the call is not for an endpoint of the simple kind."""
        path, rollout = split_path(sent.path) if self._rollouts else (sent.path, None)
        plan = self.router.plan(sent.method, path)
        if plan is None or not self._is_ordinary(path):
            return None
        body: Any = sent.model
        if body is None:
            body = sent.body
        elif not plan.takes_models and plan.body_name is not None:
            body = plan.parts.of_sent(body) if plan.parts is not None else None
            if body is None:
                body = sent.written()  # by the caller, who is told if that is not possible
        return Isolated(self._answer(sent, plan, body, watched, rollout), Context())

    def _is_ordinary(self, path: str) -> bool:
        known = self._ordinary.get(path)
        if known is None:  # asked only for paths that are routes of this app, so there are few
            known = self._ordinary[path] = _ORDINARY_PATH.fullmatch(path) is not None
        return known

    async def _answer(
        self, sent: Sent, plan: Plan, body: Any, watched: deadline.Alarm, rollout: re.Match[str] | None
    ) -> LocalResponse:
        """In the handler's own context, which learns first until when, with what and for which rollout it is."""
        deadline.begin(watched)
        if sent.headers:
            allowance.begin(sent.headers)
        if rollout is not None:
            begin_rollout(rollout)
        session: dict[str, Any] | None = None
        if self._reads_cookies and self.session is not None:
            cookie = sent.cookie(self.session.cookie_name)
            session = self.session.session_of(() if cookie is None else (cookie,))
        request = ShortRequest(self, sent, plan, session) if plan.request_name is not None else None
        injected = plan.injected() if plan.response_name is not None else None
        try:
            values = {}
            if plan.body_name is not None:
                values[plan.body_name] = _validated(plan, body)
            if plan.request_name is not None:
                values[plan.request_name] = request
            if plan.response_name is not None:
                values[plan.response_name] = injected
            answer = await (plan.bare or plan.call)(**values)
            answer = _answered(plan, answer, injected)
        except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # the boundary of a server: its layers say what becomes of it
            answer = error
        if request is not None:
            session = request.session_afterwards()
        return self._short_response(sent, answer, session) or await self._through_layers(sent, answer, session)

    def _short_response(self, sent: Sent, answer: Any, session: dict[str, Any] | None) -> LocalResponse | None:
        """The answer as it is, if there is nothing out of the ordinary about it or the session."""
        cookie = None
        is_bytes = type(answer) is bytes
        if not is_bytes and isinstance(answer, _NOT_ORDINARY):
            return None
        if self._sets_cookies and self.session is not None:
            try:
                if not session:
                    return None
                cookie = (self.session.cookie_name, self.session.codec.encode(session), COOKIE_ATTRIBUTES)
            except TypeError:  # something in the session cannot be written
                return None
        return ShortResponse(sent, None, answer, cookie) if is_bytes else ShortResponse(sent, answer, b"", cookie)

    async def _through_layers(self, sent: Sent, answer: Any, session: dict[str, Any] | None) -> LocalResponse:
        """What the app's layers make of an answer or exception of the endpoint."""
        if isinstance(answer, BaseModel):
            answer = json_response(answer)
        elif isinstance(answer, bytes):
            answer = Response(answer, media_type="application/json")
        request = sent.request()
        handed = Handed(None, is_welcome=True)
        scope = request.scope(handed)
        scope[PREPARED] = Prepared(answer, session)
        return await local.answered(self.app, request, scope, handed)

    async def failed(self, sent: Sent, error: Exception) -> LocalResponse:
        """What the app answers to a call that failed with `error`."""
        return await self._through_layers(sent, error, None)

    def scope(self, sent: Sent, plan: Plan) -> Scope:
        """What a handler would find in its request's scope."""
        scope = sent.request().scope(Handed(None, is_welcome=True))
        path = plan.route.path
        if len(sent.path) > len(path):
            scope |= {"path": path, "raw_path": path.encode("ascii")}
            scope[ROLLOUT_PREFIX_SCOPE_KEY] = sent.path.removesuffix(path)
        return scope | self.router.matched(plan) | {"app": self.app}


def _validated(plan: Plan, body: Any) -> Any:
    """The body as the endpoint declares it: given as a model or its parts, or as bytes.

    Raises:
        RequestValidationError: 422, in FastAPI's shape.
        HTTPException: 413.
    """
    assert plan.body is not None
    if type(body) is bytes:
        if len(body) > LARGEST_BODY:
            raise HTTPException(413, f"the request body is larger than {LARGEST_BODY} bytes")
        try:
            body = parse_json(body) if body else ABSENT
        except json.JSONDecodeError as error:
            raise not_json(error) from error
    elif type(body) is not dict:
        return body  # a model, and the endpoint takes models
    return validated_body(plan.body, body)


def _answered(plan: Plan, answer: Any, injected: Response | None) -> Response | BaseModel | bytes:
    """What the endpoint returned: the model or JSON itself if that is all, else a response to be sent."""
    touched = injected is not None and (injected.raw_headers or injected.status_code)
    if plan.bare is not None and isinstance(answer, BaseModel):
        return json_response(answer, (injected,)) if touched else answer
    if isinstance(answer, Response):
        return answer
    if touched or plan.status != 200:
        return plan.response(answer, injected)
    return plan.written(answer)
