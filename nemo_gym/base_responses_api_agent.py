"""Agent servers: the loop that alternates between a model and an environment.

A subclass overrides `responses` (one episode: from a request to the final response) and `run` (one rollout: seed the
session, run the episode, verify). When model calls are captured, the paths of calls contain the rollout id, which
`url_path_for_run` and related methods add.
"""

import asyncio
import functools
import warnings
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

from fastapi import APIRouter, Body, FastAPI, HTTPException, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym.capture.store import captures_model_calls, captures_token_ids
from nemo_gym.config_types import (
    ROLLOUT_PATH_PREFIX,
    TOKEN_CAPTURE_PATH_SEGMENT,
    AggregateMetrics,
    AggregateMetricsRequest,
    BaseRunServerInstanceConfig,
)
from nemo_gym.errors import EnvFailed
from nemo_gym.keys import EPISODE_HEADER, NG_NO_PERSIST_KEY, OPENING_KEY, RESPONSE_KEY_NAME
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.reward_profile import AggregateMetricsMixin
from nemo_gym.rollout_correlation import (
    apply_rollout_prefix,
    current_rollout_id,
    maybe_rollout_id_from_run_body,
    rollout_context,
    rollout_path_prefix,
)
from nemo_gym.serve.agent_sessions import (
    AGENT_SESSION_COOKIE_KEY,
    AgentSessions,
    AgentSessionSetupError,
    AgentSessionState,
    _AgentSessionRecord,
)
from nemo_gym.serve.app import create_app
from nemo_gym.serve.cancellation import RolloutScope
from nemo_gym.serve.correlation import ROLLOUT_ID, rollout_index_from_run_body
from nemo_gym.serve.endpoints import (
    async_handler,
    json_bytes,
    json_endpoint,
    json_response,
    plan_for,
    resolved_signature,
)
from nemo_gym.serve.run_budget import LimitedAnswer, OpenBudgets, current_run_budget, set_run, spent_tokens, with_usage
from nemo_gym.serve.run_counts import counting_run
from nemo_gym.serve.session_closing import call_at_shutdown
from nemo_gym.server_utils import (
    BaseServer,
    SimpleServer,
    get_first_server_config_dict,
    get_response_json,
    raise_for_status,
)
from nemo_gym.transport import call_timing, deadlines, reply_log
from nemo_gym.transport.client_response import reply_header
from nemo_gym.wire.episode import NO_SIGNALS, Opening, Signals, apply_opening
from nemo_gym.wire.run_seed_verify import BaseRunRequest, BaseVerifyResponse
from nemo_gym.wire.session_access import ToolAccess
from nemo_gym.wire.session_requests import (
    AgentCloseSessionRequest,
    AgentCloseSessionResponse,
    AgentSeedSessionRequest,
    AgentSeedSessionResponse,
)
from nemo_gym.wire.stored_rollout import REWARD_KEY

RESPONSES_PATH = "/v1/responses"

RunBody = BaseModel | dict[str, Any] | None


class BaseResponsesAPIAgentConfig(BaseRunServerInstanceConfig):
    """Configuration fields of every agent."""

    skip_verification: bool = False
    """Collect rollouts without calling the verifier."""
    skip_verification_reward: float = 0.0
    """Reward of a rollout whose verification is skipped."""
    needs_model: bool = True
    """A rollout without a successful model call is a failure; `false` for agents that call no model."""
    token_id_capture: bool = False
    """Capture the token ids of this agent's model calls, if the run has token id capture enabled."""
    session_close_retry_window_seconds: float = Field(default=300.0, gt=0)
    """The end of a session with an id is remembered for this time, for callers that repeat it."""
    tool_accesses: list[ToolAccess] = []
    """Tools of every session with an id; those in the request have priority."""


def episode_signals(reply: Any) -> Signals:
    """Return what a resources server reports about the episode in the header of a reply.

    Raises:
        EnvFailed: the header is invalid.
    """
    value = reply_header(reply, EPISODE_HEADER)
    if value is None:
        return NO_SIGNALS
    try:
        return Signals.parse(value)
    except ValueError as error:
        raise EnvFailed(f"the header {EPISODE_HEADER} is invalid: {error}", where=_callee_of(reply)) from None


async def open_conversation(
    reply: Any, params: NeMoGymResponseCreateParamsNonStreaming
) -> NeMoGymResponseCreateParamsNonStreaming:
    """Return the request of a row with the messages and tools of the opening in the answer of `/seed_session`.

    Without an opening, return it unchanged.

    Raises:
        EnvFailed: the opening is invalid.
    """
    if not episode_signals(reply).opening:
        return params
    try:
        opening = Opening.model_validate((await get_response_json(reply))[OPENING_KEY])
    except (KeyError, TypeError, ValueError) as error:  # also pydantic's ValidationError
        raise EnvFailed(f"/seed_session answered with an invalid opening: {error}", where=_callee_of(reply)) from None
    return apply_opening(params, opening)


def _callee_of(reply: Any) -> str | None:
    callee = getattr(reply, "callee", None)
    return callee if isinstance(callee, str) else None


class _CaptureFlags(NamedTuple):
    """Captures that a configuration enables for an agent."""

    config: object
    model_calls: bool
    token_ids: bool


class BaseResponsesAPIAgent(BaseServer):
    """A server whose configuration is a `BaseResponsesAPIAgentConfig`."""

    config: BaseResponsesAPIAgentConfig


class SimpleResponsesAPIAgent(BaseResponsesAPIAgent, AggregateMetricsMixin, SimpleServer):
    """Base class of agent servers: routes `/v1/responses`, `/run` and `/aggregate_metrics`."""

    def setup_webserver(self) -> FastAPI:
        """Build the app with the routes of every agent server."""
        app = create_app(title=type(self).__name__)
        app.state.agent_name = self.config.name  # for `serve.cancellation`
        self.setup_session_middleware(app)
        app.post(RESPONSES_PATH)(json_endpoint(self.responses))
        _add_rollout_routes(app.router)
        app.post("/run")(json_endpoint(self._with_rollout(self.run)))
        app.post("/aggregate_metrics")(json_endpoint(self.aggregate_metrics))
        app.post("/v1/agent_sessions", include_in_schema=False)(json_endpoint(self._seed_agent_session))
        app.post("/v1/agent_sessions/close", include_in_schema=False)(json_endpoint(self._close_agent_session))
        call_at_shutdown(app, self._agent_sessions.close_all)
        return app

    async def _seed_agent_session(self, request: Request, body: AgentSeedSessionRequest) -> AgentSeedSessionResponse:
        """Begin a session whose id the caller chose; its cookie names it in the calls of `/v1/responses`."""
        if self.config.num_workers not in (None, 1):
            raise ValueError(f"{self.config.name}: agent sessions need num_workers: 1, not {self.config.num_workers}")
        return await self._agent_sessions.seed(body, request.session)

    async def _close_agent_session(self, body: AgentCloseSessionRequest) -> AgentCloseSessionResponse:
        return await self._agent_sessions.close(body)

    @cached_property
    def _agent_sessions(self) -> AgentSessions:
        return AgentSessions(
            self._seed_agent_session_state,
            self._close_agent_session_state,
            retry_window_seconds=self.config.session_close_retry_window_seconds,
        )

    async def _seed_agent_session_state(self, body: AgentSeedSessionRequest) -> AgentSessionState:
        """Return the state of a new session. Agents that support sessions override this and the next method."""
        raise NotImplementedError(f"{type(self).__name__} has no sessions")

    async def _close_agent_session_state(self, state: AgentSessionState) -> AgentCloseSessionResponse:
        """Free what a session holds and return what the agent observed in it."""
        raise NotImplementedError(f"{type(self).__name__} has no sessions")

    def _agent_session_id_from_request(self, request: Request) -> str | None:
        """Return the session that the cookie of a request names; None for a call outside of such sessions."""
        session = request.scope.get("session") if isinstance(getattr(request, "scope", None), Mapping) else None
        session = getattr(request, "session", None) if session is None else session
        value = session.get(AGENT_SESSION_COOKIE_KEY) if isinstance(session, Mapping) else None
        return value if isinstance(value, str) else None

    def _require_agent_session(self, session_id: str) -> AgentSessionState:
        """Return the state of an open session; 409 for an unknown, closed or closing one."""
        return self._agent_sessions.state(session_id)

    def effective_tool_accesses(self, seed: AgentSeedSessionRequest) -> list[ToolAccess]:
        """Return the tools of a session: configured tools and the request's, which replace those of the same name."""
        return list({access.name: access for access in (*self.config.tool_accesses, *seed.tool_accesses)}.values())

    @abstractmethod
    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        """Run one episode and return the final response. An override may also take `request` and `response`."""

    @abstractmethod
    async def run(self, body: BaseRunRequest = Body()) -> BaseVerifyResponse:
        """Run one rollout, verify it and return the result. An override may also take `request`."""

    async def aggregate_metrics(self, body: AggregateMetricsRequest = Body()) -> AggregateMetrics:
        """Compute metrics over many rollouts; empty if verification is skipped."""
        if self.config.skip_verification:
            warnings.warn(
                f"{self.config.name}: verification was skipped, so there are no metrics", RuntimeWarning, stacklevel=2
            )
            return AggregateMetrics()
        return await super().aggregate_metrics(body)

    def rollout_id_from_run(self, body: BaseModel | Mapping[str, Any]) -> str | None:
        """Return the rollout id of a run request; None if nothing is captured.

        Raises:
            ValueError: the rollout id in the request is not safe in a path.
        """
        return maybe_rollout_id_from_run_body(body) if self._capture_correlation_enabled() else None

    def url_path_for_run(self, url_path: str, body: BaseModel | Mapping[str, Any]) -> str:
        """Return `url_path` with the rollout prefix of a run request."""
        return self._prefix(self.rollout_id_from_run(body)) + url_path

    def base_url_for_run(self, base_url: str, body: BaseModel | Mapping[str, Any]) -> str:
        """Return `base_url` with the rollout prefix of a run request."""
        return apply_rollout_prefix(
            base_url, self.rollout_id_from_run(body), token_capture=self._token_id_capture_enabled()
        )

    def url_path_for_request(self, url_path: str, request: Request) -> str:
        """Return `url_path` with the rollout prefix of `request`, for nested calls of the same rollout."""
        return _inbound_prefix(request) + url_path

    def resolve_model_base_url(
        self, model_server_name: str, rollout_id: str | None = None, *, version_path: str = "/v1"
    ) -> str:
        """Return `http://host:port[/prefix]/v1` of a model server, for programs that need a base URL.

        The prefix names the current rollout, or `rollout_id`, to which the calls of the program then belong: they are
        captured, count as its usage, and are refused when it reaches a limit. `version_path=""` gives the URL without
        `/v1`, for programs that add it themselves (Anthropic and Gemini clients). Call it once for each rollout.
        """
        server = get_first_server_config_dict(self.server_client.global_config_dict, model_server_name)
        base_url = self.server_client._build_server_base_url(server)
        run_budget = current_run_budget()
        rollout_id = rollout_id or current_rollout_id() or (run_budget.rollout_id() if run_budget else None)
        budget = run_budget.open_at(model_server_name, rollout_id) if run_budget and rollout_id else None
        prefix = rollout_path_prefix(rollout_id, token_capture=self._token_id_capture_enabled(), budget=budget)
        return f"{base_url}{prefix}{version_path}"

    async def _fetch_counts(self, server_name: str, path: str) -> Mapping[str, Any]:
        """Close the budget of a rollout at a model server and return its counts."""
        reply = await self.server_client.post(server_name=server_name, url_path=path, json={})
        await raise_for_status(reply)
        counts: Mapping[str, Any] = await get_response_json(reply)
        return counts

    async def _run_within_budget(self, work: Awaitable[Any], budgets: OpenBudgets) -> Any:
        """Await a rollout and close its budget, if it has one; return its answer with the usage of all calls.

        A rollout that reached a limit has a `LimitedAnswer`, also if the agent raised an error because of it. Another
        error carries the tokens that were spent, which count towards the limits of the run.
        """
        try:
            answer = await work
        except asyncio.CancelledError:
            for budget in budgets:
                budget.close_later(self._fetch_counts)
            raise
        except Exception as error:
            if not budgets:
                raise
            budget = budgets[0]
            counts = await budget.close(self._fetch_counts)
            if counts["reached_limit"] is None:
                reply_log.attach_response(error, spent_tokens(counts))
                raise
            return budget.limited_answer(None, counts)
        if not budgets or not budgets[0].is_open:
            return answer
        budget = budgets[0]
        has_own_calls = (
            len(reply_log.current_log() or [None]) > 1
        )  # read first: closing is a call to a model server, too
        counts = await budget.close(self._fetch_counts)
        if counts["reached_limit"] is not None:
            return budget.limited_answer(answer, counts)
        if not has_own_calls:
            budget.check_answered(counts)
        return with_usage(answer, counts)

    def _prefix(self, rollout_id: str | None) -> str:
        if rollout_id is None:
            return ""
        return rollout_path_prefix(rollout_id, token_capture=self._token_id_capture_enabled())

    # The other methods ask these three, which tests of server folders replace.

    def _model_call_capture_enabled(self) -> bool:
        return self._captures().model_calls

    def _token_id_capture_enabled(self) -> bool:
        return self._captures().token_ids

    def _capture_correlation_enabled(self) -> bool:
        return self._model_call_capture_enabled() or self._token_id_capture_enabled()

    @cached_property
    def _capture_flags(self) -> list[_CaptureFlags]:
        return []

    def _captures(self) -> _CaptureFlags:
        """Return the enabled captures. They are cached, because reading the configuration is slow."""
        flags = self._capture_flags
        config = getattr(self.server_client, "global_config_dict", None)
        if not flags or flags[0].config is not config:
            tokens = captures_token_ids(config, for_this_agent=self.config.token_id_capture)
            calls = captures_model_calls(config)
            flags[:] = [_CaptureFlags(config, calls, tokens)]
        return flags[0]

    def _with_rollout(self, run: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        """Wrap `run`: set the current rollout for its calls, and add phase times to the answer.

        Phase times are measured if the request has an allowance, that is, if it comes from a collector.
        """
        call = async_handler(run)

        @functools.wraps(run)
        async def run_with_rollout(*args: Any, **kwargs: Any) -> Any:
            """Run one rollout with its rollout id and phase times."""
            body = next((value for value in (*args, *kwargs.values()) if isinstance(value, (BaseModel, dict))), None)
            try:
                rollout_id = self.rollout_id_from_run(body) if body is not None else None
            except ValueError as error:
                raise HTTPException(422, str(error)) from None
            if call_timing.current_rollout() is None and body is not None:
                call_timing.set_current_rollout(rollout_index_from_run_body(body))
            allowance = deadlines.current_allowance()
            timer = call_timing.PhaseTimer() if allowance is not None else None
            log: reply_log.ReplyLog | None = None if allowance is None else [None]
            reply_log.set_log(log)
            budgets: OpenBudgets = []
            set_run((body, allowance, budgets))
            work = call(*args, **kwargs)
            if rollout_id is not None:
                work = self._run_captured(work, rollout_id)
            work = self._run_within_budget(work, budgets)
            if log is not None and allowance is not None and allowance.keep_replies:
                work = self._run_cancellable(work, body, allowance.keep_replies, log)
            try:
                with counting_run():
                    answer = await work
            except Exception as error:
                if timer is not None and log is not None:
                    timer.add_to_error(error)
                    response = await reply_log.prefix_response(log, with_turns=True)
                    reply_log.attach_response(error, response and timer.with_turn_seconds(response))
                raise
            if timer is None:
                return answer
            if isinstance(answer, LimitedAnswer):
                return Response(json_bytes(timer.add_to(answer.record)), media_type="application/json")
            if isinstance(answer, BaseModel) and answer.__pydantic_extra__ is None:  # the model allows no extra fields
                return json_response(answer, (*args, *kwargs.values()), timer.add_to({}))
            return timer.add_to(answer)

        run_with_rollout.__signature__ = resolved_signature(run)  # type: ignore[attr-defined]
        return run_with_rollout

    async def _run_captured(self, work: Awaitable[Any], rollout_id: str) -> Any:
        """Await a rollout whose model calls carry its rollout id."""
        with rollout_context(rollout_id, token_capture=self._token_id_capture_enabled()):
            return await work

    async def _run_cancellable(self, work: Awaitable[Any], body: RunBody, caller: int, log: reply_log.ReplyLog) -> Any:
        """Await a rollout that its caller can cancel by id; the answer then has what was generated, if it is kept."""
        answer = None
        with self._cancellation_scope(body, caller) as scope:
            answer = await work
        if answer is None and scope.is_cancelled:
            return await _cancelled_answer(body, log if scope.keeps_prefix else None)
        return answer

    def _cancellation_scope(self, body: RunBody, caller: int) -> RolloutScope:
        """Return the scope of a run request."""
        rollout_id, rollout = None, call_timing.current_rollout()
        with suppress(ValueError):
            rollout_id = maybe_rollout_id_from_run_body(body) if body is not None else None
        if rollout_id is not None or rollout is None:
            return RolloutScope(self.config.name, rollout_id, caller=caller)
        # The class of the request drops the id; the header has no attempt.
        return RolloutScope(self.config.name, call_timing.format_rollout(rollout), caller=caller, has_attempt=False)


async def _cancelled_answer(body: RunBody, log: reply_log.ReplyLog | None) -> Response:
    """Return the answer of a cancelled `/run`: the fields of its request, no reward, and the prefix if it is kept."""
    fields = body.model_dump(mode="json", exclude_unset=True) if isinstance(body, BaseModel) else dict(body or {})
    for result in (REWARD_KEY, RESPONSE_KEY_NAME):  # a row may be the record of an earlier rollout
        fields.pop(result, None)
    answer = {**fields, NG_NO_PERSIST_KEY: True}
    response = await reply_log.prefix_response(log) if log is not None else None
    if response is not None:
        answer[RESPONSE_KEY_NAME] = response
    return Response(json_bytes(answer), media_type="application/json")


class _RolloutEndpoint:
    """ASGI app: sets the current rollout id from the path parameter and runs an endpoint."""

    def __init__(self, endpoint: ASGIApp, *, token_capture: bool) -> None:
        self.endpoint = endpoint
        self.token_capture = token_capture

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the endpoint with the rollout id of the path; 422 if the id is invalid."""
        rollout_id = scope["path_params"]["rollout_id"]
        if not ROLLOUT_ID.fullmatch(rollout_id):
            raise HTTPException(422, f"not a rollout id: {rollout_id!r} must match {ROLLOUT_ID.pattern}")
        with rollout_context(rollout_id, token_capture=self.token_capture):
            await self.endpoint(scope, receive, send)


def _add_rollout_routes(router: APIRouter) -> None:
    """Also serve the last route of the router under the two rollout prefixes. The request path keeps its prefix."""
    original = router.routes[-1]
    assert isinstance(original, APIRoute)
    plan = plan_for(original)
    endpoint = original.app if plan is None else plan.serve
    for token_capture in (False, True):
        path = rollout_path_prefix("{rollout_id}", token_capture=token_capture) + original.path
        app = _RolloutEndpoint(endpoint, token_capture=token_capture)
        router.routes.append(Route(path, app, methods=["POST"], name=original.name, include_in_schema=False))


def _inbound_prefix(request: Any) -> str:
    """Return the rollout prefix of a request; empty if its path has none, or if a test passes None or a stub."""
    path = getattr(getattr(request, "url", None), "path", None)
    if isinstance(path, str):
        parts = path.split("/")
        if len(parts) >= 4 and parts[1] == ROLLOUT_PATH_PREFIX:
            return rollout_path_prefix(parts[2], token_capture=parts[3] == TOKEN_CAPTURE_PATH_SEGMENT)
    parameters = getattr(request, "path_params", None)
    rollout_id = parameters.get("rollout_id") if isinstance(parameters, Mapping) else None
    return rollout_path_prefix(rollout_id) if isinstance(rollout_id, str) else ""


__all__ = [
    "AGENT_SESSION_COOKIE_KEY",
    "AgentCloseSessionRequest",
    "AgentCloseSessionResponse",
    "AgentSeedSessionRequest",
    "AgentSeedSessionResponse",
    "AgentSessionSetupError",
    "AgentSessionState",
    "AggregateMetrics",
    "AggregateMetricsRequest",
    "BaseResponsesAPIAgent",
    "BaseResponsesAPIAgentConfig",
    "BaseRunRequest",
    "BaseVerifyResponse",
    "Body",
    "NeMoGymResponse",
    "NeMoGymResponseCreateParamsNonStreaming",
    "SimpleResponsesAPIAgent",
    "_AgentSessionRecord",
    "episode_signals",
    "open_conversation",
]
