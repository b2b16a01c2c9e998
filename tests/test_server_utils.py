"""The interface between server folders and the package: names, construction, patching, calls."""

import asyncio
import signal
import socket
import threading
from typing import ClassVar
from unittest.mock import AsyncMock, MagicMock

import orjson
import pytest
import uvicorn
from fastapi import Body, FastAPI, Request
from fastapi.testclient import TestClient
from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, PrivateAttr

import nemo_gym.server_utils as server_utils
from nemo_gym.config_types import BaseRunServerInstanceConfig, BaseServerConfig
from nemo_gym.errors import ConfigError, DeadlineExceeded, ServerRefNotFoundError, ServerUnreachable
from nemo_gym.serve import addresses
from nemo_gym.serve.correlation import rollout_context
from nemo_gym.server_utils import (
    SESSION_ID_KEY,
    BaseServer,
    HeadServer,
    ServerClient,
    SimpleServer,
    get_response_json,
    get_server_url,
    raise_for_status,
    request,
)
from nemo_gym.transport import deadlines, http_sessions, in_process
from nemo_gym.transport import http as net_client
from nemo_gym.transport.retries import RetryPolicy

HEAD = BaseServerConfig(host="127.0.0.1", port=11000)


@pytest.fixture(autouse=True)
def _reset_transport():
    net_client.health.clear()
    http_sessions.configure(None)
    yield
    net_client.health.clear()
    http_sessions.configure(None)


class SumsConfig(BaseRunServerInstanceConfig):
    tolerance: float = 0.5


class Numbers(BaseModel):
    a: int
    b: int = 0
    note: str | None = None


class SumsServer(SimpleServer):
    config: SumsConfig
    _calls: int = PrivateAttr(default=0)

    def model_post_init(self, context: object) -> None:
        self._calls = 100

    def setup_webserver(self) -> FastAPI:
        app = server_utils_app()
        self.setup_session_middleware(app)
        self.setup_session_middleware(app)
        app.post("/sum")(self.add)
        app.post("/fail")(self.fail)
        app.get("/seen/{rest:path}")(self.echo_path)
        return app

    async def add(self, request: Request, body: Numbers = Body()) -> dict[str, object]:
        self._calls += 1
        return {
            "sum": body.a + body.b,
            "set": sorted(body.model_fields_set),
            "calls": self._calls,
            "session": request.session[SESSION_ID_KEY],
        }

    async def fail(self) -> None:
        raise RuntimeError("no more numbers")

    async def echo_path(self, rest: str) -> str:
        return rest


def server_utils_app() -> FastAPI:
    from nemo_gym.serve.app import create_app

    return create_app()


def config_at(port: int, kind: str = "resources_servers", **more: object) -> DictConfig:
    block = {"entrypoint": "app.py", "host": "127.0.0.1", "port": port}
    return OmegaConf.create({"sums": {kind: {"sums_impl": block}}, **more})


def client_for(config: DictConfig) -> ServerClient:
    return ServerClient(head_server_config=HEAD, global_config_dict=config)


def build(name: str = "sums", **config: object) -> SumsServer:
    made = SumsConfig(host="0.0.0.0", port=8080, entrypoint="", name=name, **config)
    return SumsServer(config=made, server_client=MagicMock(spec=ServerClient))


@pytest.fixture
def mounted_sums():
    """The sums server in this process at an address without a listener."""
    app = build().prepare_webserver({})
    in_process.mount("127.0.0.1", 41998, app)
    yield client_for(config_at(41998))
    in_process.unmount("127.0.0.1", 41998)


@pytest.fixture(scope="module")
def live_port():
    """The sums server behind a real socket."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        server = uvicorn.Server(uvicorn.Config(build().prepare_webserver({}), log_config=None, lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join(timeout=10)


def test_a_mock_is_accepted_as_client_and_kept():
    """163 test files of existing folders build their servers like this."""
    mock = MagicMock(spec=ServerClient)
    server = SumsServer(config=SumsConfig(host="0.0.0.0", port=8080, entrypoint="", name=""), server_client=mock)

    assert server.server_client is mock
    assert server._calls == 100
    server.server_client.post = AsyncMock(return_value=1)
    assert asyncio.run(server.server_client.post(server_name="x", url_path="/y")) == 1


def test_a_server_without_routes_cannot_be_built():
    """A forgotten method would otherwise appear as 404 for every rollout."""

    class Forgot(SimpleServer):
        pass

    with pytest.raises(TypeError, match="setup_webserver"):
        Forgot(config=SumsConfig(host="h", port=1, entrypoint="", name=""), server_client=MagicMock(spec=ServerClient))


def test_sessions_work_in_the_test_client_and_the_cookie_has_its_documented_name():
    """Tests of server folders rely on the session and compare the name of the cookie."""
    client = TestClient(build().setup_webserver())
    first = client.post("/sum", json={"a": 1})
    second = client.post("/sum", json={"a": 1})

    assert first.json()["session"] == second.json()["session"]
    assert list(first.cookies) == ["SumsServer___sums"]
    assert len(first.headers.get_list("set-cookie")) == 1


def test_the_session_policy_is_declared_on_the_class_or_in_the_config():
    """A server without state should not make every caller carry a cookie."""

    class Stateless(SumsServer):
        SESSION_POLICY: ClassVar = "stateless"

    class PolicyConfig(SumsConfig):
        session_policy: str | None = None

    class ConfiguredServer(SumsServer):
        config: PolicyConfig

    mock = MagicMock(spec=ServerClient)
    common = {"host": "h", "port": 1, "entrypoint": "", "name": "n"}
    stateless = Stateless(config=SumsConfig(**common), server_client=mock)
    shared = ConfiguredServer(config=PolicyConfig(**common, session_policy="shared"), server_client=mock)

    for server in (stateless, shared):
        assert "set-cookie" not in TestClient(server.setup_webserver()).post("/sum", json={"a": 1}).headers


def test_exceptions_reach_the_tests_of_a_folder_but_not_callers_of_a_server():
    """`TestClient(server.setup_webserver())` shows the traceback; a served app answers 500."""
    with pytest.raises(RuntimeError, match="no more numbers"):
        TestClient(build().setup_webserver()).post("/fail")

    answer = TestClient(build().prepare_webserver({})).post("/fail")
    assert (answer.status_code, answer.json()) == (500, "RuntimeError('no more numbers')")


@pytest.mark.asyncio
async def test_a_call_by_name_over_http_and_in_memory_is_the_same(live_port, mounted_sums):
    """Hosting is a deployment decision, not something a server can notice."""
    answers = []
    for client in (client_for(config_at(live_port)), mounted_sums):
        first = await client.post("sums", "/sum", json=Numbers(a=1, b=2))
        await raise_for_status(first)
        again = await client.post(server_name="sums", url_path="/sum", json={"a": 5}, cookies=first.cookies)
        one, two = await get_response_json(first), await get_response_json(again)
        assert one["session"] == two["session"]
        assert two["calls"] == one["calls"] + 1
        answers.append((one["sum"], two["sum"], one["set"], two["set"], first.status))

    assert answers[0] == answers[1] == (3, 5, ["a", "b"], ["a"], 200)


@pytest.mark.asyncio
async def test_only_what_was_set_is_sent(mounted_sums):
    """`exclude_unset`: a default filled in on the way would look like a choice of the sender."""
    response = await mounted_sums.post("sums", "/sum", json=Numbers(a=1))

    assert (await get_response_json(response))["set"] == ["a"]


@pytest.mark.asyncio
async def test_options_that_in_process_calls_do_not_support_use_http(mounted_sums, monkeypatch):
    """Ignoring an option such as `ssl` would change a call without an error."""
    sent = AsyncMock()
    monkeypatch.setattr(server_utils, "request", sent)

    await mounted_sums.post("sums", "/sum", json={"a": 1}, ssl=False)

    assert sent.await_args.kwargs["url"] == "http://127.0.0.1:41998/sum"
    assert sent.await_args.kwargs["_internal"] is True


@pytest.mark.asyncio
async def test_the_patched_request_is_used_and_model_calls_may_be_repeated(monkeypatch):
    """Tests replace `nemo_gym.server_utils.request`; it must be looked up when called."""
    sent = AsyncMock()
    monkeypatch.setattr(server_utils, "request", sent)

    await client_for(config_at(5)).get("sums", "/x", params={"a": "1"})
    await client_for(config_at(5, "responses_api_models")).post("sums", "/v1/responses", json=Numbers(a=1))

    env, model = (call.kwargs for call in sent.await_args_list)
    assert (env["method"], env["url"], env["safe_to_retry"]) == ("GET", "http://127.0.0.1:5/x", False)
    assert model["json"] == {"a": 1}
    assert model["safe_to_retry"] is True


@pytest.mark.asyncio
async def test_a_call_limit_over_http_is_named_by_its_setting(monkeypatch):
    """The deadline of the call is that of its kind; another error of the call is not taken for a timeout."""

    async def wait_for_deadline(**_):
        await asyncio.sleep(deadlines.seconds_left())
        raise DeadlineExceeded("late", where="sums")

    monkeypatch.setattr(server_utils, "request", wait_for_deadline)
    with deadlines.using_allowance(deadlines.Allowance(tool_call_seconds=0.01)):
        with pytest.raises(deadlines.ToolCallTimeout, match="late"):
            await client_for(config_at(5)).post("sums", "/add", json={})
        monkeypatch.setattr(server_utils, "request", AsyncMock(side_effect=ZeroDivisionError))
        with pytest.raises(ZeroDivisionError):
            await client_for(config_at(5)).post("sums", "/add", json={})


@pytest.mark.asyncio
async def test_addresses_are_looked_up_once_until_the_configuration_is_replaced(monkeypatch):
    """Looking up an address per call slows every rollout; a stale one sends it to a dead server."""
    sent = AsyncMock()
    monkeypatch.setattr(server_utils, "request", sent)
    looked_up: list[str] = []
    original = addresses.address_of

    def counting_address_of(config, name):
        looked_up.append(name)
        return original(config, name)

    monkeypatch.setattr(addresses, "address_of", counting_address_of)
    client = client_for(config_at(5))

    for _ in range(3):
        await client.get("sums", "/")
    client.global_config_dict = config_at(6)
    await client.get("sums", "/")

    assert looked_up == ["sums", "sums"]
    assert [call.kwargs["url"][-2] for call in sent.await_args_list] == ["5", "5", "5", "6"]


@pytest.mark.asyncio
async def test_with_observability_calls_carry_their_rollout_id(monkeypatch):
    """Captured calls without the id could not be assigned to a rollout."""
    sent = AsyncMock()
    monkeypatch.setattr(server_utils, "request", sent)
    with rollout_context("3-1"):
        await client_for(config_at(5, observability_enabled=True)).post("sums", "/tool", json={})
        await client_for(config_at(5)).post("sums", "/tool", json={})

    urls = [call.kwargs["url"] for call in sent.await_args_list]
    assert urls == ["http://127.0.0.1:5/ng-rollout/3-1/tool", "http://127.0.0.1:5/tool"]


@pytest.mark.asyncio
async def test_an_unknown_server_is_a_clear_error_and_a_dead_one_is_named(monkeypatch):
    """The user must be able to distinguish a typo from a crashed server."""
    monkeypatch.setattr(server_utils, "SERVER_CALL", RetryPolicy(attempts=2, first_pause=0, max_pause=0))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        client = client_for(config_at(taken.getsockname()[1]))

        with pytest.raises(ServerRefNotFoundError, match="sums"):
            await client.post("summs", "/x")
        with pytest.raises(ServerUnreachable) as caught:
            await client.post("sums", "/x", json={})

    assert caught.value.where == "sums"


@pytest.mark.asyncio
async def test_a_plain_request_uses_the_patched_session(monkeypatch):
    """Tests of server folders replace the session to avoid the network."""
    session = MagicMock()
    session.request = AsyncMock(return_value=MagicMock(status=200))
    monkeypatch.setattr(server_utils, "get_global_aiohttp_client", lambda: session)

    await request("POST", "http://h:1/x", json={"a": 1})

    assert session.request.await_args.args == ("POST", "http://h:1/x")
    assert session.request.await_args.kwargs["data"] == b'{"a":1}'


@pytest.mark.asyncio
async def test_the_session_takes_its_settings_from_the_global_configuration(monkeypatch):
    """A user raises the connection limit for large runs; ignoring it would throttle them."""
    monkeypatch.setattr(
        server_utils,
        "maybe_get_global_config_dict",
        lambda: OmegaConf.create({"global_aiohttp_connector_limit": 7, "global_aiohttp_client_request_debug": True}),
    )

    assert not server_utils.is_global_aiohttp_client_setup()
    assert server_utils.get_global_aiohttp_client().connector.limit == 7
    assert server_utils.is_global_aiohttp_client_setup()
    assert server_utils.is_global_aiohttp_client_request_debug_enabled()
    with pytest.raises(AssertionError, match="already"):
        server_utils.set_global_aiohttp_client(server_utils.GlobalAIOHTTPAsyncClientConfig())


def test_a_url_comes_from_the_patched_configuration(monkeypatch):
    """Tests of server folders replace the configuration to get a known URL."""
    monkeypatch.setattr(server_utils, "get_global_config_dict", lambda: config_at(5))

    assert get_server_url("sums") == "http://127.0.0.1:5"


def test_a_server_reads_its_own_block_with_the_class_declared_for_it(monkeypatch):
    """Settings of the author would otherwise be lost or stay unresolved interpolations."""
    config = config_at(5)
    config.sums.resources_servers.sums_impl.tolerance = "${limit}"
    config.limit = 0.25
    monkeypatch.setattr(server_utils, "get_global_config_dict", lambda: config)
    monkeypatch.setenv("NEMO_GYM_CONFIG_PATH", "sums")

    loaded = SumsServer.load_config_from_global_config()

    assert isinstance(loaded, SumsConfig)
    assert (loaded.name, loaded.port, loaded.tolerance) == ("sums", 5, 0.25)


def test_a_bad_block_is_one_clear_error(monkeypatch):
    """The author sees the field at fault, and no key is printed into the log."""
    config = config_at(5)
    config.sums.resources_servers.sums_impl.tolerance = "sk-secret-1"
    monkeypatch.setattr(server_utils, "get_global_config_dict", lambda: config)
    monkeypatch.setenv("NEMO_GYM_CONFIG_PATH", "sums")

    with pytest.raises(ConfigError, match="sums: not a valid SumsConfig: tolerance") as caught:
        SumsServer.load_config_from_global_config()
    assert "sk-secret-1" not in str(caught.value)

    monkeypatch.delenv("NEMO_GYM_CONFIG_PATH")
    with pytest.raises(ConfigError, match="NEMO_GYM_CONFIG_PATH is not set"):
        SumsServer.load_config_from_global_config()


def test_a_status_is_polled_without_an_event_loop(live_port):
    """Scripts wait for servers before they start a loop and act on the kind of failure."""
    assert client_for(config_at(live_port)).poll_for_status("sums") == "success"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert client_for(config_at(taken.getsockname()[1])).poll_for_status("sums") == "connection_error"
    assert client_for(config_at(1)).poll_for_status("nobody") == "unknown_error"


def test_a_missing_status_is_a_timeout(monkeypatch):
    """A server that hangs must not hang the script that waits for it."""
    monkeypatch.setattr(server_utils, "BLOCKING_GET_SECONDS", 0.05)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)
        assert client_for(config_at(silent.getsockname()[1])).poll_for_status("sums") == "timeout"


def test_a_client_learns_everything_from_a_running_head_server(monkeypatch):
    """The documented first step: `ServerClient.load_from_global_config()`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = config_at(5, head_server={"host": "127.0.0.1", "port": port}, policy_api_key="sk-secret-1")
    monkeypatch.setattr(server_utils, "get_global_config_dict", lambda: config)

    server, thread, head = HeadServer.run_webserver()
    try:
        head.set_server_instances([{"process_name": "sums"}])
        client = server_utils.setup_server_client()
        assert client.global_config_dict.sums.resources_servers.sums_impl.port == 5
        assert client.global_config_dict.policy_api_key == "****"
        assert client.head_server_config.port == port
        body = server_utils.get_blocking("127.0.0.1", port, "/server_instances", timeout=5)[1]
        assert orjson.loads(body) == [{"process_name": "sums"}]
    finally:
        server.should_exit = True
        thread.join(timeout=10)


def test_a_head_server_whose_port_is_taken_says_so_at_once(monkeypatch):
    """Two runs on one machine is the usual reason; the second should not start half."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        head = {"host": "127.0.0.1", "port": taken.getsockname()[1]}
        monkeypatch.setattr(server_utils, "get_global_config_dict", lambda: OmegaConf.create({"head_server": head}))

        with pytest.raises(ConfigError, match="cannot listen"):
            HeadServer.run_webserver()


def test_a_missing_head_server_is_a_value_error(monkeypatch):
    """Existing scripts catch ValueError when no servers are running."""
    monkeypatch.setattr(server_utils, "get_global_config_dict", lambda: OmegaConf.create({}))
    with pytest.raises(ConfigError, match="head_server"):
        ServerClient.load_from_global_config()
    with pytest.raises(ValueError, match="could not connect to the head server"):
        ServerClient.load_from_global_config(BaseServerConfig(host="127.0.0.1", port=1))


def test_a_dry_run_builds_the_server_and_serves_nothing(monkeypatch):
    """A dry run checks that a server can be built, without taking its port."""
    config = config_at(5, head_server={"host": "127.0.0.1", "port": 1}, dry_run=True)
    monkeypatch.setattr(server_utils, "get_global_config_dict", lambda: config)
    monkeypatch.setenv("NEMO_GYM_CONFIG_PATH", "sums")
    monkeypatch.setattr(server_utils, "exit_with_parent", lambda *_: None)
    for name in ("prefix_output", "start_logging"):
        monkeypatch.setattr(server_utils.webserver, name, lambda *_, **__: None)
    monkeypatch.setattr(server_utils.http_sessions, "raise_open_files_limit", lambda *_: None)
    served: list[object] = []
    monkeypatch.setattr(server_utils.webserver, "serve", lambda app, options: served.append((app, options)))

    assert SumsServer.run_webserver() is None
    assert served == []

    config.dry_run = False
    SumsServer.run_webserver()
    app, options = served[0]  # type: ignore[misc]
    assert TestClient(app).get("/").json() == {"status": "ok"}
    assert (options["host"], options["port"]) == ("127.0.0.1", 5)


def test_a_server_gets_a_signal_that_lets_uvicorn_stop_in_order_when_its_parent_dies(monkeypatch):
    """SIGKILL would cut rollouts in flight."""
    signals: list[signal.Signals] = []

    def stop_here(number: signal.Signals) -> None:
        signals.append(number)
        raise InterruptedError

    monkeypatch.setattr(server_utils, "exit_with_parent", stop_here)
    with pytest.raises(InterruptedError):
        SumsServer.run_webserver()

    assert signals == [signal.SIGTERM]


def test_workers_are_started_by_entrypoint_and_give_their_app_back(monkeypatch):
    """A worker process that builds another app would serve other routes than its siblings."""
    config = config_at(5, head_server={"host": "127.0.0.1", "port": 1})
    config.sums.resources_servers.sums_impl.num_workers = 3
    monkeypatch.setattr(server_utils, "get_global_config_dict", lambda: config)
    monkeypatch.setenv("NEMO_GYM_CONFIG_PATH", "sums")
    monkeypatch.setattr(server_utils, "exit_with_parent", lambda *_: None)
    for name in ("prefix_output", "start_logging"):
        monkeypatch.setattr(server_utils.webserver, name, lambda *_, **__: None)
    monkeypatch.setattr(server_utils.http_sessions, "raise_open_files_limit", lambda *_: None)
    started: list[tuple[str, int]] = []
    monkeypatch.setattr(
        server_utils.webserver, "serve_in_workers", lambda entry, n, options: started.append((entry, n))
    )

    assert SumsServer.run_webserver() is None
    assert started == [("resources_servers/sums_impl/app.py", 3)]

    monkeypatch.setenv("IS_NEMO_GYM_FASTAPI_WORKER", "1")
    assert isinstance(SumsServer.run_webserver(), FastAPI)


def test_every_name_that_folders_import_is_there():
    """Re-exported by accident once, on purpose now."""
    for name in server_utils.__all__:
        assert hasattr(server_utils, name)
    assert issubclass(SimpleServer, BaseServer)
    assert SESSION_ID_KEY == "session_id"
