"""Start and stop servers from a program such as a trainer: `RunHelper`."""

import atexit
import logging
import time

from pydantic import Field

from nemo_gym import component_search_roots, global_config
from nemo_gym.cli.env.start import POLL_SECONDS, ServersNotRunning
from nemo_gym.config.omegaconf_adapter import as_dict
from nemo_gym.config_types import BaseNeMoGymCLIConfig, BaseServerConfig
from nemo_gym.errors import GymError
from nemo_gym.global_config import HEAD_SERVER_KEY_NAME, GlobalConfigDictParserConfig
from nemo_gym.launch.background_run import BackgroundRun
from nemo_gym.launch.run import Run, runnable_config
from nemo_gym.launch.supervisor import ServerDidNotStart
from nemo_gym.server_utils import ServerClient, ServerStatus

__all__ = [
    "PipListConfig", "RunConfig", "RunHelper", "ServersNotRunning", "TestAllConfig", "TestConfig", "VersionConfig",
]  # fmt: skip

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 0.2
SPINUP_SECONDS = 600.0


class RunConfig(BaseNeMoGymCLIConfig):
    """Start the servers of a configuration."""

    entrypoint: str = Field(description="The server folder to run, such as responses_api_agents/simple_agent.")


class TestConfig(RunConfig):
    """Test one server folder."""

    __test__ = False  # not a test class of pytest

    should_validate_data: bool = Field(default=False, description="Check the example data too.")


class TestAllConfig(BaseNeMoGymCLIConfig):
    """Test every server folder."""

    __test__ = False

    fail_on_total_and_test_mismatch: bool = Field(default=False, description="Folders without a README are failures.")
    delete_venvs_after_each_test: bool = Field(default=False, description="Delete each environment after its tests.")
    num_shards: int = Field(default=1, description="Number of parts into which the folders are divided.")
    shard_index: int = Field(default=0, description="Number of the part to test, from 0.")


class PipListConfig(RunConfig):
    """List the packages of a server's environment."""

    format: str | None = Field(default=None, description="Output format of pip, such as json.")
    outdated: bool = Field(default=False, description="List only packages with a newer version.")


class VersionConfig(BaseNeMoGymCLIConfig):
    """Print the versions of NeMo Gym, Python and important packages."""

    json_format: bool = Field(default=False, alias="json", description="Print JSON.")


class RunHelper:
    """Starts the servers of a configuration and stops them; for synchronous code.

    The servers are managed on a separate thread, so the caller may use threads and event loops freely. The servers end
    with this process, even if it is killed.
    """

    def __init__(self) -> None:
        self._background: BackgroundRun | None = None
        self._run: Run | None = None
        self._server_client: ServerClient | None = None
        """A client for the servers; trainers read `_server_client.head_server_config`."""

    def start(self, global_config_dict_parser_config: GlobalConfigDictParserConfig | None = None) -> None:
        """Read the configuration, start its servers, and return when all are ready; a dry run only constructs them.

        Sets the global configuration of this process to the configuration, including the chosen ports.

        Raises:
            ConfigError: the configuration is not valid or defines no servers, or a model endpoint does not answer.
            PortTaken: a configured port is in use.
            ServerDidNotStart: a server did not start, with its last lines; all servers are stopped.
        """
        if self._background is not None:
            raise ServersNotRunning("this helper has been started already", fix="call shutdown() before start()")
        config = runnable_config(global_config_dict_parser_config or GlobalConfigDictParserConfig())
        self._background = BackgroundRun(config, component_search_roots())
        atexit.register(self.shutdown)
        try:
            self._run = self._background.start()
        except BaseException:
            self.shutdown()
            raise
        global_config._GLOBAL_CONFIG_DICT = config
        self._server_client = ServerClient(
            head_server_config=BaseServerConfig.model_validate(as_dict(config[HEAD_SERVER_KEY_NAME])),
            global_config_dict=config,
        )
        self.display_server_instance_info()

    @property
    def head(self) -> BaseServerConfig:
        """The address of the head server, to pass to `run_examples` or to a client in another process.

        Raises:
            ServersNotRunning: the helper has not been started.
        """
        if self._server_client is None:
            raise ServersNotRunning("no servers have been started", fix="call start() first")
        return self._server_client.head_server_config

    def shutdown(self) -> None:
        """Stop every server and release every port, in bounded time. Idempotent."""
        background, self._background, self._run = self._background, None, None
        if background is not None:
            background.stop()
        atexit.unregister(self.shutdown)

    def run_forever(self) -> None:
        """Keep the servers running until Ctrl-C or until one ends for good, then stop them all."""
        try:
            while self._run is not None and self._background is not None:
                self.poll()
                self._background.wait(POLL_SECONDS)
        except KeyboardInterrupt:
            logger.info("interrupted: stopping the servers")
        finally:
            self.shutdown()

    def poll(self) -> None:
        """Raise an error if a server has ended for good. A server that is being restarted is no error.

        Raises:
            ServersNotRunning: (a RuntimeError) with the names of the servers that ended.
        """
        run = self._started_run()
        in_cells = ", ".join(instance.name for instance in run.instances if instance.hosting == "cell")
        labels = [f"{name} ({in_cells})" if name.startswith("cell ") else name for name in run.lost_processes()]
        if labels:
            raise ServersNotRunning("ended and will not be restarted", where=", ".join(labels), fix="read its log")

    def wait_for_spinup(self) -> None:
        """Return when every server answers. After `start` all of them answer, unless one is being restarted.

        Raises:
            ServersNotRunning: a server ended for good.
            ServerDidNotStart: servers do not answer within SPINUP_SECONDS, with their names.
        """
        deadline = time.monotonic() + SPINUP_SECONDS
        while True:
            self.poll()
            silent_servers = [name for name, status in self.check_http_server_statuses() if status != "success"]
            if not silent_servers:
                return
            if time.monotonic() > deadline:
                raise ServerDidNotStart(f"no answer within {SPINUP_SECONDS:g} s", where=", ".join(silent_servers))
            time.sleep(PAUSE_SECONDS)

    def wait_for_dry_run_spinup(self) -> None:
        """Do nothing: in a dry run, `start` returns when every server has been constructed."""

    def wait_for_model_endpoints(self) -> None:
        """Return when every endpoint behind a model server answers; stop the servers if one does not.

        Raises:
            ConfigError: endpoints do not answer in time, with their URLs and configuration keys.
        """
        self._started_run()
        assert self._background is not None
        try:
            self._background.call(self._background.wait_for_endpoints())
        except GymError:
            self.shutdown()
            raise

    def check_http_server_statuses(self) -> list[tuple[str, ServerStatus]]:
        """Return the name of every server and the result of its `GET /`."""
        run, client = self._started_run(), self._server_client
        assert client is not None
        return [(instance.name, client.poll_for_status(instance.name)) for instance in run.instances]

    def display_server_instance_info(self) -> None:
        """Log the name, kind, process and address of every server."""
        for server in self._run.server_instances() if self._run is not None else ():
            kind = f"{server['server_type']}/{server['name']}"
            logger.info("%s (%s): %s, process %s", server["process_name"], kind, server["url"], server["pid"])

    def _started_run(self) -> Run:
        """Return the started run; raise ServersNotRunning if it was not started or has ended."""
        if self._run is None or self._background is None or not self._background.alive:
            raise ServersNotRunning("no servers are running", fix="call start() first")
        return self._run
