"""Running servers from a program of one's own, such as a trainer: `RunHelper`. And `gym env` commands as functions."""

import atexit
import logging
import time

from pydantic import Field

from nemo_gym import component_search_roots, global_config
from nemo_gym.cli.scripts import run_command_line
from nemo_gym.config_types import BaseNeMoGymCLIConfig, BaseServerConfig
from nemo_gym.errors import GymError
from nemo_gym.global_config import GlobalConfigDictParser, GlobalConfigDictParserConfig
from nemo_gym.launch.helper import BackgroundRun
from nemo_gym.launch.ports import with_open_head_port
from nemo_gym.launch.run import Run
from nemo_gym.launch.supervisor import ServerDidNotStart
from nemo_gym.server_utils import ServerClient, ServerStatus

__all__ = [
    "GlobalConfigDictParserConfig",
    "PipListConfig",
    "RunConfig",
    "RunHelper",
    "ServersNotRunning",
    "TestAllConfig",
    "TestConfig",
    "dump_config",
    "init_resources_server",
    "pip_list",
    "run",
    "status",
    "test",
    "test_all",
    "validate",
]

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
PAUSE_SECONDS = 0.2
SPINUP_SECONDS = 600.0


class RunConfig(BaseNeMoGymCLIConfig):
    """Start the servers of a configuration."""

    entrypoint: str = Field(description="The server folder to run, such as responses_api_agents/simple_agent.")


class TestConfig(RunConfig):
    """Test one server folder."""

    __test__ = False  # not one of pytest's

    should_validate_data: bool = Field(default=False, description="Check the example data too.")


class TestAllConfig(BaseNeMoGymCLIConfig):
    """Test every server folder."""

    __test__ = False

    fail_on_total_and_test_mismatch: bool = Field(default=False, description="Folders without a README are failures.")
    delete_venvs_after_each_test: bool = Field(default=False, description="Remove environments once they were used.")
    num_shards: int = Field(default=1, description="Into how many parts the folders are divided.")
    shard_index: int = Field(default=0, description="Which part is tested.")


class PipListConfig(RunConfig):
    """List the packages of a server's environment."""

    format: str | None = Field(default=None, description="How pip prints them, such as json.")
    outdated: bool = Field(default=False, description="Only those of which there is a newer version.")


class ServersNotRunning(GymError, RuntimeError):
    """Servers that should be up are not."""

    exit_status = 3


class RunHelper:
    """Starts the servers of a configuration and stops them; for synchronous code.

    Everything happens on a thread of its own, so the caller may have threads and event loops as it likes. When the
    process ends, however it ends, the servers end with it.
    """

    def __init__(self) -> None:
        self._background: BackgroundRun | None = None
        self._run: Run | None = None

    def start(self, global_config_dict_parser_config: GlobalConfigDictParserConfig | None = None) -> None:
        """Read the configuration, start its servers, and return when all are ready; a dry run only builds them.

        From then on the configuration, with the ports that were chosen, is that of this process.

        Raises:
            ConfigError: it cannot be used, defines no servers, or a model endpoint does not answer.
            PortTaken: a port it asks for is in use.
            ServerDidNotStart: one did not, with its name and last lines; nothing is left running.
        """
        if self._background is not None:
            raise ServersNotRunning("this helper has been started already", fix="call shutdown() before start()")
        asked = global_config_dict_parser_config or GlobalConfigDictParserConfig()
        parser = GlobalConfigDictParser()
        # Offline: ports that nobody chose stay open until they are bound, so that nobody can take them in between.
        resolved = parser.resolve(asked.model_copy(update={"offline": True}))
        for warning in resolved.warnings:
            logger.warning(warning)
        config = with_open_head_port(resolved)
        parser.raise_on_no_server_instances(config)
        self._background = BackgroundRun(config, component_search_roots())
        atexit.register(self.shutdown)
        try:
            self._run = self._background.start()
        except BaseException:
            self.shutdown()
            raise
        global_config._GLOBAL_CONFIG_DICT = config
        self.display_server_instance_info()

    def shutdown(self) -> None:
        """End every server and give back every port, in bounded time. Safe to repeat."""
        background, self._background, self._run = self._background, None, None
        if background is not None:
            background.stop()
        atexit.unregister(self.shutdown)

    def run_forever(self) -> None:
        """Keep the servers up until Ctrl-C, or until one is lost, and then stop them all."""
        try:
            while self._run is not None and self._background is not None:
                self.poll()
                self._background.wait(POLL_SECONDS)
        except KeyboardInterrupt:
            logger.info("interrupted: stopping the servers")
        finally:
            self.shutdown()

    def poll(self) -> None:
        """Return when all is well. A server that crashed and is being started again is well.

        Raises:
            ServersNotRunning: (a RuntimeError) names the ones that stay down.
        """
        run = self._running()
        lost = [_with_servers(name, run) for name in run.lost()]
        if lost:
            raise ServersNotRunning("ended and will not be started again", where=", ".join(lost), fix="read its log")

    def wait_for_spinup(self) -> None:
        """Return when every server answers; after `start`, at once unless one is just being started again.

        Raises:
            ServersNotRunning: one is lost.
            ServerDidNotStart: the time is up; names the silent ones.
        """
        until = time.monotonic() + SPINUP_SECONDS
        while True:
            self.poll()
            silent = [name for name, status in self.check_http_server_statuses() if status != "success"]
            if not silent:
                return
            if time.monotonic() > until:
                raise ServerDidNotStart(f"no answer within {SPINUP_SECONDS:g} s", where=", ".join(silent))
            time.sleep(PAUSE_SECONDS)

    def wait_for_dry_run_spinup(self) -> None:
        """Nothing is left to wait for: in a dry run, `start` returns when every server has been built."""

    def wait_for_model_endpoints(self) -> None:
        """Return when every endpoint that model servers forward to answers; otherwise stop the servers.

        Raises:
            ConfigError: the ones that do not in time, with their keys.
        """
        self._running()
        assert self._background is not None
        try:
            self._background.call(self._background.wait_for_endpoints())
        except GymError:
            self.shutdown()
            raise

    def check_http_server_statuses(self) -> list[tuple[str, ServerStatus]]:
        """Every server's name and how its `GET /` went."""
        run = self._running()
        head = BaseServerConfig.model_validate(dict(run.config["head_server"]))
        client = ServerClient(head_server_config=head, global_config_dict=run.config)
        return [(instance.name, client.poll_for_status(instance.name)) for instance in run.instances]

    def display_server_instance_info(self) -> None:
        """Log every server's name, kind, process and address."""
        for found in self._run.server_instances() if self._run is not None else ():
            kind = f"{found['server_type']}/{found['name']}"
            logger.info("%s (%s): %s, process %s", found["process_name"], kind, found["url"], found["pid"])

    def _running(self) -> Run:
        if self._run is None or self._background is None or not self._background.alive:
            raise ServersNotRunning("no servers are running", fix="call start() first")
        return self._run


def _with_servers(process: str, run: Run) -> str:
    """A process's name; of a cell also the servers in it."""
    inside = [instance.name for instance in run.instances if instance.hosting == "cell"]
    return f"{process} ({', '.join(inside)})" if process.startswith("cell ") and inside else process


def run() -> None:
    """`gym env start` with this process's arguments."""
    run_command_line("env", "start")


def test() -> None:
    """`gym env test` with this process's arguments."""
    run_command_line("env", "test")


def test_all() -> None:
    """`gym env test` with this process's arguments."""
    run_command_line("env", "test")


def init_resources_server() -> None:
    """`gym env init` with this process's arguments."""
    run_command_line("env", "init")


def dump_config() -> None:
    """`gym env resolve` with this process's arguments."""
    run_command_line("env", "resolve")


def validate() -> None:
    """`gym env validate` with this process's arguments."""
    run_command_line("env", "validate")


def status() -> None:
    """`gym env status` with this process's arguments."""
    run_command_line("env", "status")


def pip_list() -> None:
    """`gym env packages` with this process's arguments."""
    run_command_line("env", "packages")
