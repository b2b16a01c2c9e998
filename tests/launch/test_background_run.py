"""A synchronous trainer starts servers, uses them from its event loops, and leaves no process."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from nemo_gym import global_config
from nemo_gym.cli.env import RunHelper, ServersNotRunning
from nemo_gym.errors import ConfigError, NoServerInstancesError
from nemo_gym.global_config import GlobalConfigDictParserConfig
from nemo_gym.launch import background_run
from nemo_gym.launch.ports import PortTaken, listen
from nemo_gym.launch.supervisor import ServerDidNotStart
from nemo_gym.rollout_collection import RolloutCollectionHelper
from nemo_gym.serve.run_registry import live_runs
from tests.processes import is_gone

WEATHER = [
    "resources_servers/example_single_tool_call/configs/example_single_tool_call.yaml",
    "responses_api_models/scripted_model/configs/scripted_model.yaml",
]
AGENT = "example_single_tool_call_simple_agent"
ROW = {"responses_create_params": {"input": "What should I wear tonight?"}, "agent_ref": {"name": AGENT}}

LONELY = """
    from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer

    class Lonely(SimpleResourcesServer):
        config: BaseResourcesServerConfig

        async def verify(self, body):
            raise NotImplementedError

    if __name__ == "__main__":
        Lonely.run_webserver()
"""


EARLIER_THREADS: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def parser_config(**values: Any) -> GlobalConfigDictParserConfig:
    return GlobalConfigDictParserConfig(
        initial_global_config_dict=OmegaConf.create(values), skip_load_from_cli=True, skip_load_from_dotenv=True
    )


@pytest.fixture
def one_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., GlobalConfigDictParserConfig]:
    """Write a server folder and return the configuration that starts it."""

    def write(source: str, **values: Any) -> GlobalConfigDictParserConfig:
        folder = tmp_path / "resources_servers" / "lonely"
        folder.mkdir(parents=True)
        (folder / "app.py").write_text(textwrap.dedent(source))
        (folder / "requirements.txt").write_text("-e nemo-gym[dev] @ ../../\n")
        monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(tmp_path))
        return parser_config(
            only={"resources_servers": {"lonely": {"entrypoint": "app.py", "domain": "other"}}}, **values
        )

    return write


@pytest.fixture
def helper() -> Iterator[RunHelper]:
    helper = RunHelper()
    yield helper
    helper.shutdown()


def is_free(port: int) -> bool:
    try:
        listen("probe", "127.0.0.1", port).close()
    except PortTaken:
        return False
    return True


def threads() -> list[str]:
    """Return the threads that the test started and that still run; those of other tests may end later."""
    return [
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith("nemo-gym") and thread not in EARLIER_THREADS
    ]


@pytest.fixture(autouse=True)
def _note_earlier_threads() -> None:
    """A server of another test in this process may wait for its clients in a thread of the same name."""
    EARLIER_THREADS.clear()
    EARLIER_THREADS.update(threading.enumerate())


def zygotes() -> set[int]:
    """Return the zygotes of this process; other tests may have processes of other kinds."""
    pids = set()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"nemo_gym.launch.zygote" in (path / "cmdline").read_bytes():
                pids.add(int(path.name))
    return pids


def test_a_trainer_starts_servers_collects_rewards_and_leaves_no_process(
    helper: RunHelper, caplog: pytest.LogCaptureFixture
) -> None:
    """The complete use: synchronous start, rollouts on the caller's event loops, stop."""
    caplog.set_level(logging.INFO, logger="nemo_gym.cli.env")

    async def collect() -> list[Any]:
        rows = [{**ROW, "number": number} for number in range(2)]
        return [await pair for pair in RolloutCollectionHelper().run_examples(rows)]

    before = zygotes()
    helper.start(global_config_dict_parser_config=parser_config(config_paths=WEATHER))
    pairs = asyncio.run(collect()) + asyncio.run(collect())  # a second loop must not use links of the first

    assert sorted(row["number"] for row, _ in pairs) == [0, 0, 1, 1]
    assert [result["reward"] for _, result in pairs] == [1.0] * 4
    helper.poll()
    helper.wait_for_spinup()
    helper.wait_for_model_endpoints()
    assert helper.check_http_server_statuses() == [
        (name, "success") for name in ("example_single_tool_call", AGENT, "policy_model")
    ]
    assert f"{AGENT} (responses_api_agents/simple_agent): http://127.0.0.1:" in caplog.text
    config = global_config.get_global_config_dict()
    head, port = config.head_server.port, config.policy_model.responses_api_models.scripted_model.port
    assert [run.port for run in live_runs() if run.pid == os.getpid()] == [head]
    processes = zygotes() - before

    helper.shutdown()
    helper.shutdown()

    assert is_free(port)
    assert is_free(head)
    assert processes and not [pid for pid in processes if not is_gone(pid)]
    assert not threads()
    assert not [run for run in live_runs() if run.pid == os.getpid()]


def test_servers_stay_up_beside_a_running_loop_until_interrupted(
    helper: RunHelper, one_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trainer actors often run on a loop: starting there must not deadlock, nor a second start lose the first."""
    config = one_server(LONELY)

    async def main() -> list[tuple[str, str]]:
        helper.start(config)
        with pytest.raises(RuntimeError, match="started already"):
            helper.start(config)
        return list(helper.check_http_server_statuses())

    assert asyncio.run(main()) == [("only", "success")]

    monkeypatch.setattr(helper, "poll", lambda: signal.raise_signal(signal.SIGINT))  # Ctrl-C while it waits
    helper.run_forever()

    assert not threads()


def test_a_failed_start_names_the_server_and_leaves_no_process(helper: RunHelper, one_server: Any) -> None:
    """The trainer gets one clear error, and its next attempt finds the machine unchanged."""
    before = zygotes()

    with pytest.raises(ServerDidNotStart, match="no_such_module") as raised:
        helper.start(one_server("import no_such_module\n"))

    assert raised.value.where == "only"
    assert zygotes() <= before
    assert not threads()
    assert global_config.maybe_get_global_config_dict() is None


def test_a_start_without_servers_is_refused(helper: RunHelper) -> None:
    """A forgotten config path must not look like a run with nothing to do."""
    with pytest.raises(NoServerInstancesError):
        helper.start(parser_config(policy_model_name="none"))


def test_a_model_that_does_not_answer_stops_the_start(helper: RunHelper, one_server: Any) -> None:
    """Reported before an hour of failing rollouts; the error names the key to correct."""
    with listen("model", "127.0.0.1", 0) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
    config = one_server(LONELY, model_endpoint_readiness_timeout_seconds=0.1)
    model = {"entrypoint": "app.py", "script": [{"text": "hello"}], "base_url": url}
    config.initial_global_config_dict.policy_model = {"responses_api_models": {"scripted_model": model}}

    with pytest.raises(ConfigError, match=r"policy_model\.responses_api_models\.scripted_model\.base_url"):
        helper.start(config)

    assert not threads()


def test_a_head_port_that_was_chosen_is_kept_or_refused(helper: RunHelper, one_server: Any) -> None:
    """Others know that port; a head that silently moves would send them to another run."""
    with listen("squatter", "127.0.0.1", 0) as squatter:
        port = squatter.getsockname()[1]

        with pytest.raises(PortTaken, match=f"head_server: port {port} on 127.0.0.1 is in use"):
            helper.start(one_server(LONELY, head_server={"host": "127.0.0.1", "port": port}))

    assert not threads()


def test_poll_names_a_server_that_stays_down(
    helper: RunHelper, one_server: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A trainer that polls must get an error instead of waiting forever."""
    helper.start(one_server(LONELY))
    (tmp_path / "resources_servers" / "lonely" / "app.py").write_text("raise RuntimeError('broken since')\n")
    assert helper._run is not None
    os.kill(helper._run.server_instances()[0]["pid"], signal.SIGKILL)

    until = time.monotonic() + 20
    with pytest.raises(RuntimeError, match="only: ended and will not be restarted") as raised:
        while time.monotonic() < until:
            helper.poll()
            time.sleep(0.02)

    assert isinstance(raised.value, ServersNotRunning)
    with pytest.raises(ServersNotRunning):
        helper.run_forever()
    assert not threads()


def test_a_dry_run_builds_every_server_and_serves_none(helper: RunHelper, one_server: Any) -> None:
    """A container image can be checked without a model."""
    helper.start(one_server(LONELY, dry_run=True))

    helper.wait_for_dry_run_spinup()
    helper.run_forever()
    with pytest.raises(ServersNotRunning, match="no servers are running"):
        helper.poll()


PROGRAM = """
    import json, os, sys
    from omegaconf import OmegaConf
    from nemo_gym.cli.env import RunHelper
    from nemo_gym.global_config import GlobalConfigDictParserConfig, get_global_config_dict

    helper = RunHelper()
    initial = OmegaConf.create({"only": {"resources_servers": {"lonely": {"entrypoint": "app.py", "domain": "other"}}}})
    helper.start(
        GlobalConfigDictParserConfig(
            initial_global_config_dict=initial, skip_load_from_cli=True, skip_load_from_dotenv=True
        )
    )
    pid = helper._run.server_instances()[0]["pid"]
    if os.fork() == 0:
        sys.exit()  # a fork runs our atexit code too, and must not end its parent's servers
    os.wait()
    helper.wait_for_spinup()
    print(json.dumps([pid, get_global_config_dict().only.resources_servers.lonely.port]), flush=True)
"""


def test_servers_end_with_a_program_that_does_not_stop_them(one_server: Any, tmp_path: Path) -> None:
    """Notebooks end without calling shutdown()."""
    one_server(LONELY)

    done = subprocess.run(
        [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", textwrap.dedent(PROGRAM)],
        capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False,
    )  # fmt: skip

    moved = "is in use; the head server uses"  # another run on this machine may have the usual port
    assert (done.returncode, [line for line in done.stderr.splitlines() if moved not in line]) == (0, [])
    pid, port = json.loads(done.stdout)
    assert is_free(port)
    assert is_gone(pid)


def test_output_of_servers_is_logged_at_the_level_it_names(caplog: pytest.LogCaptureFixture) -> None:
    """A trainer at the default level sees warnings and nothing else."""
    caplog.set_level(logging.INFO, logger=background_run.__name__)

    background_run.log_line("only", "WARNING: low on space")
    background_run.log_line("only", "hello")

    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", "(only) WARNING: low on space"),
        ("INFO", "(only) hello"),
    ]
