"""MCP endpoint `/mcp`: the tools of a resources server for agents that use the Model Context Protocol.

The answer of `POST /seed_session` contains a token for the new session; MCP requests with the token in a header use
that session. A tool call is sent in process to the HTTP route of the tool, through all middleware, so that a tool
behaves the same over MCP and over HTTP.
"""

import importlib
import importlib.util
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import FastAPI
from itsdangerous import BadData, URLSafeTimedSerializer
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.errors import ConfigError
from nemo_gym.keys import EPISODE_HEADER, MCP_METADATA_KEY, MCP_SESSION_TOKEN_HEADER, SESSION_ID_KEY
from nemo_gym.serve.correlation import ROLLOUT_PREFIX_SCOPE_KEY
from nemo_gym.serve.endpoints import json_bytes
from nemo_gym.serve.mcp_tools import MCPExposureError, MCPTool, bind_route, harvest_tools, index_tools
from nemo_gym.serve.session import MAX_AGE_SECONDS, SessionMiddleware, session_secret
from nemo_gym.transport.asgi import read_request_body
from nemo_gym.transport.client_response import LocalResponse
from nemo_gym.transport.in_process import dispatch
from nemo_gym.wire.call_reply import parse_json
from nemo_gym.wire.episode import Content, Signals, read_content, text_part
from nemo_gym.wire.run_seed_verify import MCPServerMetadata

logger = logging.getLogger("nemo_gym.serve")

EXTRA = "nemo-gym[mcp]"
MCP_PATH = "/mcp"
_DATA_URL = re.compile(r"data:([\w/+.-]+);base64,(.*)", re.DOTALL)
TOKEN_SALT = "nemo-gym-mcp-session-token"
NO_SESSION = f"no session: send the {MCP_SESSION_TOKEN_HEADER} header from the answer of POST /seed_session"

__all__ = [
    "MCPExposureError",
    "MCPTool",
    "bind_route",
    "call_direct",
    "harvest_tools",
    "install_auto_exposure",
    "maybe_auto_expose",
]


@dataclass(frozen=True)
class SessionGrant:
    """Contents of a token: a session id and the tools that the session may use."""

    session_id: str
    tools: tuple[str, ...] | None = None
    """Names of the allowed tools; None means all."""

    def allows(self, tool: str) -> bool:
        return self.tools is None or tool in self.tools


class TokenSigner:
    """Creates and verifies session tokens, signed with the secret of session cookies.

    `key` identifies the server: a token is valid only for the server that issued it.
    """

    def __init__(self, key: str, secret: str | None = None) -> None:
        self._serializer = URLSafeTimedSerializer(secret or session_secret(), salt=f"{TOKEN_SALT}:{key}")

    def sign(self, session_id: str, tools: Iterable[str] | None = None) -> str:
        """Return a token for a session; `tools` are the allowed tools, None means all."""
        return str(self._serializer.dumps({"sid": session_id, "tools": None if tools is None else list(tools)}))

    def verify(self, token: str) -> SessionGrant | None:
        """Return the grant of a token; None if the token is expired or not from this server."""
        try:
            claims = self._serializer.loads(token, max_age=MAX_AGE_SECONDS)
        except BadData:
            return None
        tools = claims["tools"]
        return SessionGrant(session_id=claims["sid"], tools=None if tools is None else tuple(tools))


class ToolServer(Protocol):
    """The attributes of a resources server that this module uses."""

    config: Any

    def get_session_middleware_key(self) -> str: ...
    def mcp_tools(self, route_tools: list[MCPTool], catchall: MCPTool | None) -> Iterable[MCPTool]: ...
    def mcp_allowed_tools_for_session(self, seed_body: Any) -> Iterable[str] | None: ...
    def normalize_tool_name(self, name: str) -> str: ...


def maybe_auto_expose(server: Any, app: FastAPI) -> None:
    """Offer the tools of `app` on `/mcp` if the configuration of the server has `expose_tools_over_mcp: true`."""
    if getattr(server.config, "expose_tools_over_mcp", False):
        install_auto_exposure(server, app)


def install_auto_exposure(server: ToolServer, app: FastAPI) -> None:
    """Offer the tools of `app` on `/mcp`. Must be called after all routes are added. Idempotent.

    Raises:
        MCPExposureError: (a ValueError) a route cannot be offered as a tool, or there are no tools.
        ConfigError: the package `mcp` is not installed.
    """
    installed_classes: list[Any] = [middleware.cls for middleware in app.user_middleware]
    if ToolsOverMCP in installed_classes:
        return
    if SessionMiddleware not in installed_classes:
        raise MCPExposureError(
            "tools over MCP need sessions, and this app has no session middleware",
            where=server.config.name,
            fix="call self.setup_session_middleware(app) in setup_webserver",
        )
    exposure = Exposure.of(server, app)
    # Innermost, so that the session is open and the rollout prefix is removed from the path.
    app.user_middleware.append(Middleware(ToolsOverMCP, exposure=exposure, protocol=_protocol_server(exposure)))


async def call_direct(
    app: ASGIApp, tool: MCPTool, arguments: Mapping[str, Any], *, cookies: Mapping[str, str], prefix: str = ""
) -> LocalResponse:
    """Send `arguments` to the route of `tool` in process, with the session cookie of the caller."""
    return await dispatch(
        app, "POST", f"http://mcp.local{prefix}{tool.route_path}", json=dict(arguments), cookies=dict(cookies)
    )


@dataclass(frozen=True)
class Exposure:
    """The tools of one server, with the token signer and the session cookie for calling them."""

    server: ToolServer
    app: FastAPI
    tools: Mapping[str, MCPTool]
    signer: TokenSigner
    sessions: SessionMiddleware

    @classmethod
    def of(cls, server: ToolServer, app: FastAPI) -> "Exposure":
        """Collect the tools of `server` from the routes of `app`."""
        tools = index_tools(server.mcp_tools(*harvest_tools(app)), server.config.name)
        key = server.get_session_middleware_key()
        # This middleware only encodes cookies; the app creates the instance that serves requests.
        return cls(server, app, tools, TokenSigner(key), SessionMiddleware(app, key))

    def metadata(self, session_id: str, seed_body: Any) -> dict[str, Any]:
        """Return the MCP metadata for the answer of `/seed_session`: server name, path and token header."""
        allowed = self.server.mcp_allowed_tools_for_session(seed_body)
        names = None if allowed is None else list(allowed)
        unknown = [name for name in names or () if name not in self.tools]
        if unknown:
            raise MCPExposureError(
                f"mcp_allowed_tools_for_session names the unknown tool '{unknown[0]}'",
                where=self.server.config.name,
                fix=f"one of {', '.join(self.tools)}",
            )
        token = self.signer.sign(session_id, names)
        headers = {MCP_SESSION_TOKEN_HEADER: token}
        return MCPServerMetadata(server_name=self.server.config.name, url_path=MCP_PATH, headers=headers).model_dump()

    def grant(self, headers: Mapping[str, str]) -> SessionGrant | None:
        """Return the grant of the token in request headers; None without a valid token."""
        return self.signer.verify(headers.get(MCP_SESSION_TOKEN_HEADER, ""))

    def tools_for(self, grant: SessionGrant) -> list[MCPTool]:
        return [tool for tool in self.tools.values() if grant.allows(tool.name)]

    async def call(
        self, grant: SessionGrant, name: str, arguments: Mapping[str, Any], prefix: str
    ) -> tuple[Content, bool]:
        """Call a tool; return its answer as text or content parts, and True if the answer is an error."""
        if name not in {tool.name for tool in self.tools_for(grant)}:
            available = ", ".join(tool.name for tool in self.tools_for(grant)) or "none"
            return f"unknown tool '{name}'; available in this session: {available}", True
        cookies = {self.sessions.cookie_name: self.sessions.codec.encode({SESSION_ID_KEY: grant.session_id})}
        response = await call_direct(self.app, self.tools[name], arguments, cookies=cookies, prefix=prefix)
        signals = Signals.parse(response.headers.get(EPISODE_HEADER, "{}"))
        return read_content(await response.read(), signals), not response.ok


class ToolsOverMCP:
    """Middleware: serve `/mcp`, add a token to `/seed_session`, remove MCP prefixes from tool names in `/verify`."""

    def __init__(self, app: ASGIApp, exposure: Exposure, protocol: Any) -> None:
        self.app = app
        self.exposure = exposure
        self.protocol = protocol

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the MCP paths; pass other requests to the app."""
        path = scope.get("path") if scope["type"] == "http" else None
        if path == MCP_PATH:
            await self._serve_protocol(scope, receive, send)
        elif path == "/seed_session" and scope["method"] == "POST":
            await self._seed(scope, receive, send)
        elif path == "/verify" and scope["method"] == "POST":
            await self._verify(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _serve_protocol(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an MCP request; 405 for methods other than POST."""
        if scope["method"] != "POST":  # no server-side streams and no MCP protocol sessions
            await JSONResponse({"detail": "Method Not Allowed"}, 405, {"Allow": "POST"})(scope, receive, send)
            return
        transport = importlib.import_module("mcp.server.streamable_http_manager")
        # One manager per request: it keeps no state, so it needs no lifespan and no particular event loop.
        manager = transport.StreamableHTTPSessionManager(self.protocol, json_response=True, stateless=True)
        async with manager.run():
            await manager.handle_request(scope, receive, send)

    async def _seed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve `/seed_session` and add the MCP metadata to its answer."""
        body = await read_request_body(receive)
        session_id = scope["session"][SESSION_ID_KEY]
        seed = _parse_or_none(body)

        def with_metadata(answer: Any) -> Any:
            if answer is not None and not isinstance(answer, dict):
                return answer
            answer = answer or {}
            has_caller_id = isinstance(seed, dict) and {"resources_session_id", "episode_id"} <= seed.keys()
            if has_caller_id:
                return {**answer, "resources_tools": self.exposure.metadata(session_id, seed.get("task_data"))}
            return {**answer, MCP_METADATA_KEY: self.exposure.metadata(session_id, seed)}

        await self.app(scope, _replay(body, receive), _ResponseRewriter(send, with_metadata))

    async def _verify(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve `/verify` with tool names without MCP prefixes; restore the original names in the answer."""
        body = await read_request_body(receive)
        request = _parse_or_none(body)
        original_names: dict[int, str] = {}
        for index, item in _function_calls(request):
            plain_name = self.exposure.server.normalize_tool_name(item["name"])
            if plain_name != item["name"]:
                original_names[index] = item["name"]
                item["name"] = plain_name
        if not original_names:
            await self.app(scope, _replay(body, receive), send)
            return

        def with_original_names(answer: Any) -> Any:
            for index, item in _function_calls(answer):
                if index in original_names:
                    item["name"] = original_names[index]
            return answer

        new_body = json_bytes(request)
        await self.app(
            _with_length(scope, len(new_body)), _replay(new_body, receive), _ResponseRewriter(send, with_original_names)
        )


def _protocol_server(exposure: Exposure) -> Any:
    """Build a server of the `mcp` package, version 1 or 2, that lists and calls the tools of `exposure`."""
    try:
        server_class = importlib.import_module("mcp.server.lowlevel.server").Server
        is_version_2 = importlib.util.find_spec("mcp_types") is not None
        types = importlib.import_module("mcp_types" if is_version_2 else "mcp.types")
        error_class: Any = getattr(importlib.import_module("mcp.shared.exceptions"), "MCPError", None)
    except ImportError:
        raise ConfigError(
            "expose_tools_over_mcp needs the package mcp",
            where=exposure.server.config.name,
            fix=f"pip install '{EXTRA}'",
        ) from None
    endpoint = _ToolEndpoint(exposure, types, camel_case=not is_version_2)
    if is_version_2:

        async def list_tools(context: Any, _params: Any) -> Any:
            if endpoint.grant_of(context.request) is None:
                raise error_class(types.INVALID_REQUEST, NO_SESSION)
            return endpoint.list_tools(context.request)

        async def call_tool(context: Any, params: Any) -> Any:
            return await endpoint.call_tool(context.request, params)

        return server_class(exposure.server.config.name, on_list_tools=list_tools, on_call_tool=call_tool)
    server = server_class(exposure.server.config.name)

    async def answer_list(_request: Any) -> Any:
        request = server.request_context.request
        if endpoint.grant_of(request) is None:
            problem = types.ErrorData(code=types.INVALID_REQUEST, message=NO_SESSION)
            raise importlib.import_module("mcp.shared.exceptions").McpError(problem)
        return types.ServerResult(endpoint.list_tools(request))

    async def answer_call(call: Any) -> Any:
        return types.ServerResult(await endpoint.call_tool(server.request_context.request, call.params))

    server.request_handlers[types.ListToolsRequest] = answer_list
    server.request_handlers[types.CallToolRequest] = answer_call
    return server


class _ToolEndpoint:
    """Lists and calls the tools of `exposure` with the types of the `mcp` package; version 1 has camel-case fields."""

    def __init__(self, exposure: Exposure, types: Any, *, camel_case: bool) -> None:
        self.exposure = exposure
        self.types = types
        self.names = (
            {"is_error": "isError", "input_schema": "inputSchema", "mime_type": "mimeType"} if camel_case else {}
        )

    def make(self, kind: str, **fields: Any) -> Any:
        return getattr(self.types, kind)(**{self.names.get(name, name): value for name, value in fields.items()})

    def grant_of(self, request: Request | None) -> SessionGrant | None:
        return self.exposure.grant(request.headers) if request is not None else None

    def list_tools(self, request: Request) -> Any:
        """Return the tools of the session of a request with a valid token."""
        grant = self.grant_of(request)
        tools = self.exposure.tools_for(grant) if grant is not None else []
        listed = [self.make("Tool", name=t.name, description=t.description, input_schema=t.input_schema) for t in tools]
        return self.make("ListToolsResult", tools=listed)

    async def call_tool(self, request: Request | None, params: Any) -> Any:
        """Call a tool in the session of a request; without a valid token, the result is an error for the model."""
        grant = self.grant_of(request)
        answer: Content
        if grant is None or request is None:
            answer, is_error = NO_SESSION, True
        else:
            prefix = request.scope.get(ROLLOUT_PREFIX_SCOPE_KEY) or ""
            answer, is_error = await self.exposure.call(grant, params.name, params.arguments or {}, prefix)
        parts = [text_part(answer)] if isinstance(answer, str) else answer
        return self.make("CallToolResult", content=[self._content(part) for part in parts], is_error=is_error)

    def _content(self, part: Mapping[str, Any]) -> Any:
        """Return a content part as MCP content: an inline image as an image, any other part as text."""
        inline = _DATA_URL.fullmatch(part.get("image_url") or "")
        if inline:
            return self.make("ImageContent", type="image", data=inline[2], mime_type=inline[1])
        text = part["text"] if part["type"] == "input_text" else json_bytes(part).decode()
        return self.make("TextContent", type="text", text=text)


class _ResponseRewriter:
    """A `send` that buffers a successful JSON response and sends it with the content returned by `change`."""

    def __init__(self, send: Send, change: Callable[[Any], Any]) -> None:
        self._send = send
        self._change = change
        self._start: Message | None = None
        self._chunks: list[bytes] = []

    async def __call__(self, message: Message) -> None:
        """Buffer the messages of a successful response; send all others unchanged."""
        if message["type"] == "http.response.start" and 200 <= message["status"] < 300:
            self._start = message
        elif self._start is None or message["type"] != "http.response.body":
            await self._send(message)
        else:
            self._chunks.append(message.get("body", b""))
            if not message.get("more_body", False):
                await self._finish(self._start)

    async def _finish(self, start: Message) -> None:
        """Send the buffered response; a body that is not JSON is sent unchanged."""
        body = b"".join(self._chunks)
        try:
            content = parse_json(body)
        except json.JSONDecodeError:
            pass
        else:
            body = json_bytes(self._change(content))
        await self._send(_with_length(start, len(body)))
        await self._send({"type": "http.response.body", "body": body})


def _with_length(message: Any, length: int) -> Any:
    """Return a scope or response start with this content length."""
    headers = [(name, value) for name, value in message["headers"] if name.lower() != b"content-length"]
    return {**message, "headers": [*headers, (b"content-length", str(length).encode("ascii"))]}


def _replay(body: bytes, receive: Receive) -> Callable[[], Awaitable[Message]]:
    """Return a `receive` that returns `body` first and then calls the original `receive`."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_replayed() -> Message:
        return messages.pop() if messages else await receive()

    return receive_replayed


def _parse_or_none(body: bytes) -> Any:
    """Parse a JSON body; None if it is not JSON. The route reports that error."""
    try:
        return parse_json(body)
    except json.JSONDecodeError:
        return None


def _function_calls(body: Any) -> list[tuple[int, dict[str, Any]]]:
    """Return position and item of each function call in the output of a verify request or answer."""
    response = body.get("response") if isinstance(body, dict) else None
    output = response.get("output") if isinstance(response, dict) else None
    return [
        (index, item)
        for index, item in enumerate(output if isinstance(output, list) else ())
        if isinstance(item, dict) and item.get("type") == "function_call" and isinstance(item.get("name"), str)
    ]
