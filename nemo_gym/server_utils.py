"""Servers and the client they call each other with.

A seam: names here are subclassed, patched and imported by server folders, so everything that a test may replace
(`request`, `get_global_config_dict`, `get_global_aiohttp_client`) is looked up in this module when it is used. The
work is done in `nemo_gym.net` (calls) and `nemo_gym.serve` (serving).
"""

import os
import threading
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, cast

from aiohttp import ClientResponse, ClientSession
from fastapi import FastAPI
from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, PrivateAttr, field_validator

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
from nemo_gym.net import allowance, blocking, client, local, phases, sessions
from nemo_gym.net.retry import SERVER_CALL, RetryPolicy
from nemo_gym.net.sessions import GlobalAIOHTTPAsyncClientConfig
from nemo_gym.net.status import get_response_json, get_response_model, raise_for_status
from nemo_gym.serve import run
from nemo_gym.serve.addresses import (
    AddressBook,
    address_of,
    base_url,
    checked,
    entrypoint_of,
    plain,
    rollout_prefix,
)
from nemo_gym.serve.correlation import apply_rollout_prefix, rollout_path_prefix
from nemo_gym.serve.deadlines import DeadlineMiddleware
from nemo_gym.serve.failures import FailureMiddleware
from nemo_gym.serve.head import (
    HeadServerUnreachable,
    ServerInstanceDisplayConfig,
    ServerStatus,
    fetch_config_yaml,
    head_app,
)
from nemo_gym.serve.health import add_liveness
from nemo_gym.serve.run import is_fastapi_entrypoint as is_nemo_gym_fastapi_entrypoint
from nemo_gym.serve.run import is_fastapi_worker as is_nemo_gym_fastapi_worker
from nemo_gym.serve.session import SessionMiddleware, SessionPolicy

MAX_NUM_TRIES = 3
EXTERNAL_CALL = RetryPolicy(attempts=MAX_NUM_TRIES)
HEAD_TIMEOUT_SECONDS = 5.0


def get_global_aiohttp_client() -> ClientSession:
    """The running loop's aiohttp session, shaped by the global configuration if there is one."""
    if not sessions.is_configured():
        known = maybe_get_global_config_dict()
        if known is not None:
            sessions.configure(GlobalAIOHTTPAsyncClientConfig.from_global_config(known))
    return sessions.current_session()


def set_global_aiohttp_client(cfg: GlobalAIOHTTPAsyncClientConfig) -> ClientSession:
    """Open the running loop's session with these settings; it must not be open yet."""
    assert not is_global_aiohttp_client_setup(), "the global aiohttp client is already set up"
    sessions.configure(cfg)
    return sessions.current_session()


def is_global_aiohttp_client_setup() -> bool:
    return sessions.has_session()


def is_global_aiohttp_client_request_debug_enabled() -> bool:
    return sessions.settings().global_aiohttp_client_request_debug


def global_aiohttp_client_exit() -> None:
    """Close every session whose loop is not running; called at exit."""
    sessions.close_all()


async def request(
    method: str,
    url: str,
    _internal: bool = False,
    *,
    where: str | None = None,
    safe_to_repeat: bool = False,
    **kwargs: Any,
) -> ClientResponse:
    """Send an HTTP request; `kwargs` are those of aiohttp. `_internal` calls are tried more often before giving up.

    Unlike a plain aiohttp call it has a deadline, and what may have been executed is not sent twice.
    """
    return await client.send(
        method,
        url,
        policy=SERVER_CALL if _internal else EXTERNAL_CALL,
        where=where,
        safe_to_repeat=safe_to_repeat,
        session=get_global_aiohttp_client(),
        **kwargs,
    )


def get_server_url(server_name: str) -> str:
    """`http://host:port` of a server instance of this process's configuration."""
    return address_of(get_global_config_dict(), server_name).base_url


class ServerClient(BaseModel):
    """Calls server instances by name. Addresses are resolved once per configuration."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    head_server_config: BaseServerConfig
    global_config_dict: DictConfig

    @field_validator("global_config_dict", mode="before")
    @classmethod
    def _accept_plain_dictionary(cls, value: Any) -> Any:
        return OmegaConf.create(value) if type(value) is dict else value

    @classmethod
    def load_head_server_config(cls) -> BaseServerConfig:
        """Where the head server is, according to this process's configuration."""
        config = get_global_config_dict()
        if config.get(HEAD_SERVER_KEY_NAME) is None:
            raise ConfigError("the configuration does not say where the head server is", where=HEAD_SERVER_KEY_NAME)
        return BaseServerConfig.model_validate(plain(config[HEAD_SERVER_KEY_NAME]))

    @classmethod
    def load_from_global_config(cls, head_server_config: BaseServerConfig | None = None) -> "ServerClient":
        """A client for the servers that the head server knows.

        Raises:
            ValueError: the head server does not answer.
        """
        head = head_server_config or cls.load_head_server_config()
        config = OmegaConf.create(fetch_config_yaml(head.host, head.port, HEAD_TIMEOUT_SECONDS))
        return cls(head_server_config=head, global_config_dict=config)

    def _build_server_base_url(self, server_config_dict: Any) -> str:
        return base_url(server_config_dict["host"], server_config_dict["port"])

    @cached_property  # a plain attribute once it is there; pydantic's private ones are looked up slowly
    def _books(self) -> list[AddressBook]:
        return []

    def _addresses(self) -> AddressBook:
        books = self._books
        if not books or books[0].config is not self.global_config_dict:
            books[:] = [AddressBook(self.global_config_dict)]
        return books[0]

    async def request(self, server_name: str, url_path: str, method: str, **kwargs: Any) -> ClientResponse:
        """Call a server instance; a pydantic `json` is sent without the fields nobody set.

        An instance that lives in this process is called in memory.
        """
        addresses = self._addresses()
        address = addresses[server_name]
        body = kwargs.get("json")
        if addresses.observes:
            url_path = rollout_prefix(address, url_path, body) + url_path
        app = local.app_with_key(address.key)
        calls = phases.noted()
        began = phases.clock() if calls is not None else 0.0
        try:
            if app is not None and kwargs.keys() <= local.SUPPORTED_OPTIONS:
                span = allowance.span_of(address.server_type, url_path)
                answering = local.call(app, method, address.base_url, url_path, where=server_name, span=span, **kwargs)
                return cast("ClientResponse", await answering)
            with allowance.held(address.server_type, url_path):
                if isinstance(body, BaseModel):
                    kwargs["json"] = body.model_dump(exclude_unset=True)
                said = {"where": server_name, "safe_to_repeat": address.keeps_no_state, **kwargs}
                return await request(method=method, url=f"{address.base_url}{url_path}", _internal=True, **said)
        finally:
            if calls is not None:
                calls.append((address.server_type, url_path, began, phases.clock()))

    async def get(self, server_name: str, url_path: str, **kwargs: Any) -> ClientResponse:
        return await self.request(server_name=server_name, url_path=url_path, method="GET", **kwargs)

    async def post(self, server_name: str, url_path: str, **kwargs: Any) -> ClientResponse:
        return await self.request(server_name=server_name, url_path=url_path, method="POST", **kwargs)

    def poll_for_status(self, server_name: str) -> ServerStatus:
        """Whether a server answers `GET /`; any status counts. Waits, so not for use on an event loop."""
        try:
            address = self._addresses()[server_name]
            blocking.get(address.host, address.port, "/", timeout=HEAD_TIMEOUT_SECONDS, where=server_name)
        except DeadlineExceeded:
            return "timeout"
        except ServerUnreachable:
            return "connection_error"
        except GymError:
            return "unknown_error"
        return "success"


def setup_server_client(head_server_config: BaseServerConfig | None = None) -> ServerClient:
    """A client for running servers, for scripts outside them."""
    return ServerClient.load_from_global_config(head_server_config)


def server_config(cls: "type[BaseServer]", config: DictConfig, name: str) -> BaseRunServerInstanceConfig:
    """The block of an instance, checked by the class that `cls` declares for its `config`.

    Raises:
        ConfigError: the block does not fit that class.
    """
    block = get_first_server_config_dict(config, name)
    declared: Any = cls.model_fields["config"].annotation
    loaded: BaseRunServerInstanceConfig = checked(declared, plain(block) | {"name": name}, where=name)
    return loaded


class BaseServer(BaseModel):
    """Something with a configuration of its own in the global one."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    config: BaseRunServerInstanceConfig

    @classmethod
    def load_config_from_global_config(cls) -> BaseRunServerInstanceConfig:
        """This process's instance: named by `NEMO_GYM_CONFIG_PATH`, checked by the class declared for `config`."""
        name = os.environ.get(CONFIG_PATH_ENV_VAR)
        if not name:
            raise ConfigError(f"{CONFIG_PATH_ENV_VAR} is not set", where=cls.__name__, fix="use `gym env start`")
        return server_config(cls, get_global_config_dict(), name)

    def setup_liveness(self, app: FastAPI) -> None:
        """`GET /` answers `{"status": "ok"}`."""
        add_liveness(app)


class SimpleServer(BaseServer):
    """A server instance: a FastAPI app with a configuration and a client for the others."""

    SESSION_POLICY: ClassVar[SessionPolicy] = "per-session"
    """How callers are told apart; the config field `session_policy`, where a config class has one, wins."""

    server_client: ServerClient

    @abstractmethod
    def setup_webserver(self) -> FastAPI:
        """The app with this server's routes."""

    def get_session_middleware_key(self) -> str:
        """The name of the session cookie."""
        return f"{type(self).__name__}___{self.config.name}"

    def setup_session_middleware(self, app: FastAPI) -> None:
        """Give requests a `session` with a `session_id`. Doing it twice changes nothing."""
        if not any(getattr(middleware, "cls", None) is SessionMiddleware for middleware in app.user_middleware):
            policy = getattr(self.config, "session_policy", None) or self.SESSION_POLICY
            app.add_middleware(SessionMiddleware, key=self.get_session_middleware_key(), policy=policy)

    def setup_exception_middleware(self, app: FastAPI) -> None:
        """Answer failures as JSON and end work whose caller no longer waits. Must be the last middleware added."""
        app.add_middleware(DeadlineMiddleware, server_name=self.config.name)
        app.add_middleware(
            FailureMiddleware, server_name=self.config.name, redact=lambda text: redact_text(text, self.config)
        )

    def prepare_webserver(self, global_config: Mapping[str, Any]) -> FastAPI:
        """The complete app as it is served: routes, tools over MCP, liveness, failures, profiling."""
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
        """Serve this process's instance until it is told to stop; the entry of every `app.py`.

        Inside a uvicorn worker the app is returned instead. A dry run ends once the server could be built.
        """
        run.end_with_parent()
        global_config = get_global_config_dict()
        config = cls.load_config_from_global_config()
        sessions.configure(GlobalAIOHTTPAsyncClientConfig.from_global_config(global_config))
        if global_config.get("ray_head_node_address"):
            initialize_ray()
        run.prefix_output(config.name)
        run.start_logging(verbose=bool(global_config.get("verbose")))
        head = ServerClient.load_head_server_config()
        server = cls(
            config=config, server_client=ServerClient(head_server_config=head, global_config_dict=global_config)
        )
        if global_config.get("dry_run"):
            return None
        run.raise_open_files_limit()
        options = run.uvicorn_options(global_config) | {"host": config.host, "port": config.port}
        workers = 1 if run.is_launched() else config.num_workers or 1  # a launcher starts each worker itself
        if workers > 1 and not run.is_fastapi_worker():
            run.serve_in_workers(entrypoint_of(global_config, config.name), workers, options)
            return None
        app = server.prepare_webserver(global_config)
        if run.is_fastapi_worker():
            return app
        run.serve(app, options)
        return None


def initialize_ray() -> None:
    """Join the Ray cluster of the configuration, or start one and write its address there."""
    run.join_ray(get_global_config_dict())


class HeadServer(BaseServer):
    """Knows the configuration and the instances of a run, and tells both over HTTP."""

    config: BaseServerConfig  # type: ignore[assignment]

    _server_instances: list[dict[str, Any]] = PrivateAttr(default_factory=list)

    def set_server_instances(self, instances: list[dict[str, Any]]) -> None:
        self._server_instances = instances

    def setup_webserver(self) -> FastAPI:
        return head_app(get_global_config_dict, lambda: self._server_instances)

    @classmethod
    def run_webserver(cls) -> tuple[Any, threading.Thread, "HeadServer"]:
        """Serve in a thread, where `head_server` says; returns the uvicorn server, its thread and the head."""
        config = ServerClient.load_head_server_config()
        head = cls(config=config)
        server, thread = run.serve_in_thread(head.setup_webserver(), host=config.host, port=config.port)
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
