"""Base classes of servers (`SimpleServer`, `HeadServer`) and the client for calls between servers (`ServerClient`).

Server folders import, subclass and patch the names of this module; functions that tests replace are looked up in it at
each call. The implementation is in `nemo_gym.transport` (calls) and `nemo_gym.serve` (serving).
"""

import asyncio
import os
import signal
import threading
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from inspect import isabstract
from types import ModuleType
from typing import Any, ClassVar, Literal

from aiohttp import ClientResponse, ClientSession
from fastapi import FastAPI
from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, PrivateAttr, field_validator

from nemo_gym.config.keys import DEFAULT_HEAD_SERVER_PORT
from nemo_gym.config.omegaconf_adapter import as_dict
from nemo_gym.config.secrets import redact_text
from nemo_gym.config_types import (
    AgentServerRef,
    BaseRunServerInstanceConfig,
    BaseServerConfig,
    ModelServerRef,
    ResourcesServerRef,
)
from nemo_gym.errors import ConfigError, DeadlineExceeded, GymError, ServerUnreachable
from nemo_gym.global_config import (
    HEAD_SERVER_KEY_NAME,
    get_first_server_config_dict,
    get_global_config_dict,
    maybe_get_global_config_dict,
)
from nemo_gym.keys import CONFIG_PATH_ENV_VAR, SESSION_ID_KEY
from nemo_gym.processes import exit_with_parent
from nemo_gym.serve import webserver
from nemo_gym.serve.addresses import (
    AddressBook,
    adopt_run_token,
    base_url,
    entrypoint_of,
    validate_config,
)
from nemo_gym.serve.app import add_liveness
from nemo_gym.serve.correlation import (
    apply_rollout_prefix,
    prefix_for_call,
    rollout_index_from_run_body,
    rollout_path_prefix,
)
from nemo_gym.serve.failures import DeadlineMiddleware, FailureMiddleware
from nemo_gym.serve.head import (
    HeadServerUnreachable,
    ServerInstanceDisplayConfig,
    ServerStatus,
    fetch_config_yaml,
    head_app,
)
from nemo_gym.serve.run_registry import live_runs, only_run
from nemo_gym.serve.session import SessionMiddleware, SessionPolicy
from nemo_gym.serve.webserver import is_fastapi_entrypoint as is_nemo_gym_fastapi_entrypoint
from nemo_gym.serve.webserver import is_fastapi_worker as is_nemo_gym_fastapi_worker
from nemo_gym.transport import call_timing, deadlines, http, http_sessions, in_process, reply_log, run_token
from nemo_gym.transport.blocking_get import get_blocking
from nemo_gym.transport.client_response import (
    get_response_json,
    get_response_model,
    note_callee,
    raise_for_lost_session,
    raise_for_status,
)
from nemo_gym.transport.http_sessions import GlobalAIOHTTPAsyncClientConfig
from nemo_gym.transport.retries import SERVER_CALL, RetryPolicy

MAX_NUM_TRIES = 3
EXTERNAL_CALL = RetryPolicy(attempts=MAX_NUM_TRIES)
BLOCKING_GET_SECONDS = 5.0
"""Timeout of `GET` requests without an event loop: the configuration of a run, and whether a server answers."""


def get_global_aiohttp_client() -> ClientSession:
    """Return the aiohttp session of the running loop, with the settings of the global configuration if it is loaded."""
    if not http_sessions.is_configured():
        config = maybe_get_global_config_dict()
        if config is not None:
            http_sessions.configure(GlobalAIOHTTPAsyncClientConfig.from_global_config(config))
    return http_sessions.current_session()


def set_global_aiohttp_client(cfg: GlobalAIOHTTPAsyncClientConfig) -> ClientSession:
    """Open the aiohttp session of the running loop with these settings. The session must not be open."""
    assert not is_global_aiohttp_client_setup(), "the global aiohttp client is already set up"
    http_sessions.configure(cfg)
    return http_sessions.current_session()


def is_global_aiohttp_client_setup() -> bool:
    return http_sessions.has_session()


def is_global_aiohttp_client_request_debug_enabled() -> bool:
    return http_sessions.settings().global_aiohttp_client_request_debug


def global_aiohttp_client_exit() -> None:
    """Close every aiohttp session whose loop is not running; called at exit."""
    http_sessions.close_all()


async def request(
    method: str,
    url: str,
    _internal: bool = False,
    *,
    callee: str | None = None,
    safe_to_retry: bool = False,
    _max_connection_retries: int | None = None,
    _server_name: str | None = None,
    **kwargs: Any,
) -> ClientResponse:
    """Send an HTTP request with a deadline and retries; `kwargs` are those of aiohttp.

    `_internal` gives more attempts, `callee` or `_server_name` names the server in errors. What the server may have
    executed is retried only if `safe_to_retry` is True or the method is safe.
    """
    attempts = None if _max_connection_retries is None else _max_connection_retries + 1
    policy = (SERVER_CALL if _internal else EXTERNAL_CALL).with_attempts(attempts)
    session = get_global_aiohttp_client()
    # The pool limits connections: a trainer may send thousands of rollouts. A session that is not ours is a test's.
    uses_pool = _internal and url.endswith("/run") and session is http_sessions.current_session()
    return await http.send(
        method,
        url,
        policy=policy,
        callee=callee or _server_name,
        safe_to_retry=safe_to_retry,
        session=None if uses_pool else session,
        **kwargs,
    )


def get_server_url(server_name: str) -> str:
    """Return `http://host:port` of a server instance in the configuration of this process."""
    server = get_first_server_config_dict(get_global_config_dict(), server_name)
    return base_url(server["host"], server["port"])


class ServerClient(BaseModel):
    """Client that calls server instances by name. Addresses are resolved once per configuration."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    head_server_config: BaseServerConfig
    global_config_dict: DictConfig

    @field_validator("global_config_dict", mode="before")
    @classmethod
    def _accept_plain_dictionary(cls, value: Any) -> Any:
        return OmegaConf.create(value) if type(value) is dict else value

    @classmethod
    def load_head_server_config(cls) -> BaseServerConfig:
        """Return the address of the head server in the configuration of this process."""
        config = get_global_config_dict()
        if config.get(HEAD_SERVER_KEY_NAME) is None:
            raise ConfigError("the configuration has no address of the head server", where=HEAD_SERVER_KEY_NAME)
        return BaseServerConfig.model_validate(as_dict(config[HEAD_SERVER_KEY_NAME]))

    @classmethod
    def load_from_global_config(cls, head_server_config: BaseServerConfig | None = None) -> "ServerClient":
        """Fetch the configuration from the head server and return a client for its server instances.

        If neither the caller nor the configuration chooses a head server, the only run of this user is used: the
        default port may belong to a run of another user.

        Raises:
            RunNotChosen: several runs are registered, and none is chosen.
            ValueError: the head server does not answer.
        """
        head = head_server_config or cls.load_head_server_config()
        if head_server_config is None and head.port == DEFAULT_HEAD_SERVER_PORT:
            entry = only_run()
            head = head if entry is None else BaseServerConfig(host=entry.host, port=entry.port)
        if run_token.token_for(head.host, head.port) is None:
            with suppress(GymError):  # the registry is not safe; the environment may have the token
                live_runs()  # adopts the tokens of the runs of this user
        token = run_token.token_for(head.host, head.port) or os.environ.get(run_token.RUN_TOKEN_ENV_VAR)
        run_token.adopt([(head.host, head.port)], token)
        config = OmegaConf.create(fetch_config_yaml(head.host, head.port, BLOCKING_GET_SECONDS))
        assert isinstance(config, DictConfig)
        adopt_run_token(config, token)
        return cls(head_server_config=head, global_config_dict=config)

    def _build_server_base_url(self, server_config_dict: Any) -> str:
        return base_url(server_config_dict["host"], server_config_dict["port"])

    @cached_property  # an ordinary attribute after the first use; pydantic's private attributes are slow
    def _address_books(self) -> list[AddressBook]:
        return []

    def _addresses(self) -> AddressBook:
        """Return the addresses of the current configuration, the only element of the list `_address_books`."""
        books = self._address_books
        if not books or books[0].config is not self.global_config_dict:
            books[:] = [AddressBook(self.global_config_dict)]
        return books[0]

    async def request(self, server_name: str, url_path: str, method: str, **kwargs: Any) -> ClientResponse:
        """Call a server instance and return the response. `kwargs` are those of aiohttp.

        A model as `json` is sent without unset fields. Instances of this process and of linked cells need no HTTP.

        Raises:
            ServerUnreachable: no answer, or the session of the call ended with the process that kept it.
            DeadlineExceeded: no answer in time.
        """
        addresses, body = self._addresses(), kwargs.get("json")
        address = addresses[server_name]
        prefix = prefix_for_call(address.server_type, url_path, body) if addresses.needs_rollout_ids else ""
        url_path = prefix + url_path
        rollout, finished, start = call_timing.current_rollout(), call_timing.finished_calls(), call_timing.clock()
        if rollout is None and url_path == "/run" and body is not None:
            rollout = rollout_index_from_run_body(body)  # later the agent's request class may drop the index
        if rollout is not None:
            number = next(call_timing.call_numbers)
            call_timing.pending_calls[number] = (rollout, server_name, url_path)
        allowance = deadlines.current_allowance()
        limit = deadlines.NO_LIMIT if allowance is None else allowance.call_limit(address.server_type, url_path)
        try:
            app = in_process.app_for_key(address.key)
            if app is not None and kwargs.keys() <= in_process.SUPPORTED_OPTIONS:
                response: ClientResponse = await in_process.request(  # type: ignore[assignment]  # same members
                    app,
                    method,
                    address.base_url,
                    url_path,
                    callee=server_name,
                    limit=limit[0],
                    rollout=rollout,
                    **kwargs,
                )
            else:
                if isinstance(body, BaseModel):
                    kwargs["json"] = body.model_dump(exclude_unset=True)
                kwargs = {"callee": server_name, "safe_to_retry": address.is_model, **kwargs}
                with deadlines.time_limit(limit[0]):
                    url = f"{address.base_url}{url_path}"
                    response = note_callee(await request(method=method, url=url, _internal=True, **kwargs), server_name)
            if getattr(response, "status", None) == 410:  # Gone; the response of a test may have no status
                raise_for_lost_session(response, server_name)
            if address.is_model and (log := reply_log.current_log()) is not None:
                log[0] = body
                log.append(response)
            return response
        except DeadlineExceeded as error:
            timeout = deadlines.as_call_timeout(error, start, limit)
            if timeout is None:
                raise
            raise timeout from error
        except asyncio.CancelledError:  # also while the call waits for the circuit breaker or for a retry
            deadlines.note_awaited_server(server_name)
            raise
        finally:
            if finished is not None:
                finished.append((address.server_type, url_path, start, call_timing.clock()))
            if rollout is not None:
                del call_timing.pending_calls[number]

    async def get(self, server_name: str, url_path: str, **kwargs: Any) -> ClientResponse:
        return await self.request(server_name=server_name, url_path=url_path, method="GET", **kwargs)

    async def post(self, server_name: str, url_path: str, **kwargs: Any) -> ClientResponse:
        return await self.request(server_name=server_name, url_path=url_path, method="POST", **kwargs)

    def poll_for_status(self, server_name: str, *, timeout_seconds: float = BLOCKING_GET_SECONDS) -> ServerStatus:
        """Send `GET /` to a server; return `success` for an answer of any status. Blocks the calling thread."""
        try:
            address = self._addresses()[server_name]
            get_blocking(address.host, address.port, "/", timeout=timeout_seconds, callee=server_name)
        except DeadlineExceeded:
            return "timeout"
        except ServerUnreachable:
            return "connection_error"
        except GymError:
            return "unknown_error"
        return "success"


def setup_server_client(head_server_config: BaseServerConfig | None = None) -> ServerClient:
    """Return a client for running servers, for use in scripts."""
    return ServerClient.load_from_global_config(head_server_config)


def find_server_class(module: ModuleType, base: Any, *, fix: str | None = None) -> Any:
    """Return the most derived concrete subclass of `base` that a module defines.

    Raises:
        ConfigError: the module defines no such class, or several unrelated ones; `fix` is the fix in the message.
    """
    classes = [
        value
        for value in dict.fromkeys(value for value in vars(module).values() if isinstance(value, type))  # no aliases
        if issubclass(value, base) and value.__module__ == module.__name__ and not isabstract(value)
    ]
    most_derived = [cls for cls in classes if not any(issubclass(other, cls) for other in classes if other is not cls)]
    if len(most_derived) != 1:
        names = ", ".join(cls.__name__ for cls in most_derived) or "none"
        problem = f"defines {len(most_derived)} server classes ({names}); exactly one is needed"
        raise ConfigError(problem, where=str(module.__file__), fix=fix)
    return most_derived[0]


def server_config(cls: "type[BaseServer]", config: DictConfig, name: str) -> BaseRunServerInstanceConfig:
    """Return the configuration of an instance, validated with the class annotated on `cls.config`.

    Raises:
        ConfigError: the block is invalid.
    """
    block = get_first_server_config_dict(config, name)
    config_class: Any = cls.model_fields["config"].annotation
    values = as_dict(block) | {"name": name}
    instance_config: BaseRunServerInstanceConfig = validate_config(config_class, values, instance=name)
    return instance_config


class BaseServer(BaseModel):
    """A server with its configuration."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    config: BaseRunServerInstanceConfig

    @classmethod
    def load_config_from_global_config(cls) -> BaseRunServerInstanceConfig:
        """Load the configuration of the instance named by the environment variable `NEMO_GYM_CONFIG_PATH`."""
        name = os.environ.get(CONFIG_PATH_ENV_VAR)
        if not name:
            raise ConfigError(f"{CONFIG_PATH_ENV_VAR} is not set", where=cls.__name__, fix="use `gym env start`")
        return server_config(cls, get_global_config_dict(), name)

    def setup_liveness(self, app: FastAPI) -> None:
        """Answer `GET /` with `{"status": "ok"}`."""
        add_liveness(app)


class SimpleServer(BaseServer):
    """A server instance: a FastAPI app with a configuration and a client for calls to other servers."""

    HOSTING: ClassVar[Literal["cell", "process", "venv"]] = "process"
    """`cell`: may share a process and its event loop with other servers. `process`: needs a separate process."""
    SESSION_POLICY: ClassVar[SessionPolicy] = "per-session"
    """Policy for session cookies (`serve.session`); a config field `session_policy` has priority."""

    ray_enabled: ClassVar[bool | None] = None
    """True: join the Ray cluster at the start, for servers that call Ray. False: never. None: if the run has one."""

    server_client: ServerClient

    @abstractmethod
    def setup_webserver(self) -> FastAPI:
        """Build the app with this server's routes."""

    def get_session_middleware_key(self) -> str:
        """Return the name of the session cookie."""
        return f"{type(self).__name__}___{self.config.name}"

    def setup_session_middleware(self, app: FastAPI) -> None:
        """Add the session cookie middleware, which sets `request.session["session_id"]`. Idempotent."""
        if not any(getattr(middleware, "cls", None) is SessionMiddleware for middleware in app.user_middleware):
            policy = getattr(self.config, "session_policy", None) or self.SESSION_POLICY
            app.add_middleware(SessionMiddleware, key=self.get_session_middleware_key(), policy=policy)

    def setup_exception_middleware(self, app: FastAPI) -> None:
        """Add the middleware for error answers and deadlines. Must be added last."""
        app.add_middleware(DeadlineMiddleware, server_name=self.config.name)
        app.add_middleware(
            FailureMiddleware, server_name=self.config.name, redact=lambda text: redact_text(text, self.config)
        )

    def prepare_webserver(self, global_config: Mapping[str, Any]) -> FastAPI:
        """Build the complete app: routes, MCP tools, liveness, error answers, profiling."""
        app = self.setup_webserver()
        if getattr(self.config, "expose_tools_over_mcp", False):
            from nemo_gym.serve.mcp import maybe_auto_expose  # needs the mcp extra

            maybe_auto_expose(self, app)
        self.setup_liveness(app)
        self.setup_exception_middleware(app)
        if global_config.get("profiling_enabled"):
            from nemo_gym.serve.profiling import setup_profiling  # needs the profiling extra

            setup_profiling(app, self.config.name, global_config.get("profiling_results_dirpath"))
        return app

    @classmethod
    def run_webserver(cls) -> FastAPI | None:
        """Serve the instance of this process until a signal stops it; the entry point of every `app.py`.

        In a uvicorn worker, return the app without serving it. In a dry run, return None after the server is created.
        """
        exit_with_parent(signal.SIGTERM)  # on SIGTERM uvicorn stops in order
        global_config = get_global_config_dict()
        config = cls.load_config_from_global_config()
        http_sessions.configure(GlobalAIOHTTPAsyncClientConfig.from_global_config(global_config))
        adopt_run_token(global_config, os.environ.get(run_token.RUN_TOKEN_ENV_VAR))
        if cls.ray_enabled or (cls.ray_enabled is None and global_config.get("ray_head_node_address")):
            initialize_ray()
        webserver.prefix_output(config.name)
        webserver.start_logging(verbose=bool(global_config.get("verbose")))
        head = ServerClient.load_head_server_config()
        server = cls(
            config=config, server_client=ServerClient(head_server_config=head, global_config_dict=global_config)
        )
        if global_config.get("dry_run"):
            return None
        http_sessions.raise_open_files_limit()
        options = webserver.uvicorn_options(global_config) | {"host": config.host, "port": config.port}
        workers = 1 if webserver.is_launched() else config.num_workers or 1  # a launcher starts each worker itself
        if workers > 1 and not webserver.is_fastapi_worker():
            webserver.serve_in_workers(entrypoint_of(global_config, config.name), workers, options)
            return None
        app = server.prepare_webserver(global_config)
        if webserver.is_fastapi_worker():
            return app
        webserver.serve(app, options)
        return None


def initialize_ray() -> None:
    """Join the Ray cluster in the configuration, or start a cluster and write its address to the configuration."""
    webserver.join_ray(get_global_config_dict())


class HeadServer(BaseServer):
    """The head server: serves the configuration and the server instances of a run."""

    config: BaseServerConfig  # type: ignore[assignment]

    _server_instances: list[dict[str, Any]] = PrivateAttr(default_factory=list)

    def set_server_instances(self, instances: list[dict[str, Any]]) -> None:
        self._server_instances = instances

    def setup_webserver(self) -> FastAPI:
        return head_app(get_global_config_dict, lambda: self._server_instances)

    @classmethod
    def run_webserver(cls) -> tuple[Any, threading.Thread, "HeadServer"]:
        """Serve in a thread at the configured address; return the uvicorn server, its thread and the head server."""
        config = ServerClient.load_head_server_config()
        head = cls(config=config)
        server, thread = webserver.serve_in_thread(head.setup_webserver(), host=config.host, port=config.port)
        return server, thread, head


__all__ = [
    "HEAD_SERVER_KEY_NAME",
    "MAX_NUM_TRIES",
    "SESSION_ID_KEY",
    "AgentServerRef",
    "BaseRunServerInstanceConfig",
    "BaseServer",
    "BaseServerConfig",
    "ClientResponse",
    "GlobalAIOHTTPAsyncClientConfig",
    "HeadServer",
    "HeadServerUnreachable",
    "ModelServerRef",
    "ResourcesServerRef",
    "ServerClient",
    "ServerInstanceDisplayConfig",
    "ServerStatus",
    "SimpleServer",
    "apply_rollout_prefix",
    "get_first_server_config_dict",
    "get_global_aiohttp_client",
    "get_global_config_dict",
    "get_response_json",
    "get_response_model",
    "get_server_url",
    "global_aiohttp_client_exit",
    "initialize_ray",
    "is_global_aiohttp_client_request_debug_enabled",
    "is_global_aiohttp_client_setup",
    "is_nemo_gym_fastapi_entrypoint",
    "is_nemo_gym_fastapi_worker",
    "maybe_get_global_config_dict",
    "raise_for_status",
    "request",
    "rollout_path_prefix",
    "set_global_aiohttp_client",
    "setup_server_client",
]
