"""The servers of an evaluation, the collector that uses them, and drivers that replace it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from nemo_gym.cli.shared import collection
from nemo_gym.cli.shared.collection import Collector, DriverFailed, Session, connect, end_with_servers, run_driver
from nemo_gym.cli.shared.concurrency import CommandInterrupted
from nemo_gym.cli.terminal.progress import Progress
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.launch.ports import listen
from nemo_gym.launch.run import Run
from nemo_gym.serve.head import HeadServerUnreachable
from nemo_gym.server_utils import ServerClient

ROOT = Path(__file__).resolve().parents[3]
STALLS = {"script": [{"text": "never", "fault": {"kind": "stall"}}]}


def configuration() -> Any:
    address = {"entrypoint": "app.py", "host": "127.0.0.1", "port": -1}
    agent = {
        "resources_server": {"type": "resources_servers", "name": "sums"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    return OmegaConf.create(
        {
            "head_server": {"host": "127.0.0.1", "port": 0},
            "sums": {"resources_servers": {"example_single_tool_call": {**address, "domain": "other"}}},
            "agent": {"responses_api_agents": {"simple_agent": {**address, **agent}}},
            "policy_model": {"responses_api_models": {"scripted_model": {**address, **STALLS}}},
        }
    )


async def test_a_collection_ends_soon_after_the_servers_of_another_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without their head, thousands of rollouts would each wait and fail for as long as retries last."""
    monkeypatch.setattr(collection, "PROBE_SECONDS", 0.05)
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    head = BaseServerConfig(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
    client = ServerClient(head_server_config=head, global_config_dict=configuration())
    session = Session(configuration(), client, head=head)
    is_cancelled, has_started = asyncio.Event(), asyncio.Event()

    async def collect() -> None:
        has_started.set()
        try:
            await asyncio.Event().wait()
        finally:
            is_cancelled.set()

    ending = asyncio.create_task(end_with_servers(session, collect()))
    await has_started.wait()
    server.close()
    async with asyncio.timeout(20):
        with pytest.raises(HeadServerUnreachable, match="the servers have ended"):
            await ending

    assert is_cancelled.is_set()


async def test_a_collection_goes_on_while_its_servers_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head server that is gone is no reason to stop if the servers still work."""
    monkeypatch.setattr(collection, "PROBE_SECONDS", 0.2)
    probes, is_probed = 0, asyncio.Event()

    def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal probes
        probes += 1
        writer.close()
        if probes == 3:
            is_probed.set()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        config = configuration()
        config.sums.resources_servers.example_single_tool_call.port = server.sockets[0].getsockname()[1]
        with listen("s", "127.0.0.1", 0) as free:
            head = BaseServerConfig(host="127.0.0.1", port=free.getsockname()[1])
        session = Session(config, ServerClient(head_server_config=head, global_config_dict=config), head=head)

        async def collect() -> str:
            await is_probed.wait()
            return "done"

        async with asyncio.timeout(20):
            assert await end_with_servers(session, collect()) == "done"


async def test_a_driver_that_writes_nothing_has_not_collected(tmp_path: Path) -> None:
    """Results of an earlier run must not be reported as those of the driver."""
    (tmp_path / "x.jsonl").write_text('{"reward": 1}\n')
    progress = Progress()

    async def idle() -> None:
        return None

    with pytest.raises(DriverFailed, match="without writing rollouts") as raised:
        await run_driver(idle, "mine:idle", tmp_path / "x.jsonl", progress)

    assert "mine:idle" in str(raised.value)
    assert progress.plan is None


async def test_only_files_that_a_driver_changed_count_as_written(tmp_path: Path) -> None:
    """Failures may be written beside the output of an earlier run."""
    (tmp_path / "x.jsonl").write_text('{"reward": 1}\n')
    progress = Progress()

    async def fails() -> None:
        (tmp_path / "x_failures.jsonl").write_text('{"_ng_failure_class": "timeout"}\n')

    await run_driver(fails, "mine:fails", tmp_path / "x.jsonl", progress)

    assert (progress.tally.scored, progress.tally.failed) == (0, {"timeout": 1})


def test_an_interrupt_ends_the_reading_of_rows() -> None:
    """A million rows are not read to the end after Ctrl-C."""
    progress = Progress()
    client: Any = None
    collector = Collector(Session(OmegaConf.create({}), client), progress)
    assert collector.on_reading is not None

    collector.on_reading(2048, 0.1)
    progress.in_flight.stop_admitting()

    with pytest.raises(CommandInterrupted, match="nothing was changed"):
        collector.on_reading(4096, 0.2)
    assert progress.reading == (4096, 0.2)


async def test_a_running_head_server_reports_which_call_a_rollout_waits_for(tmp_path: Path) -> None:
    """With --no-serve the rollouts run in other processes, and the live view must still explain a stall."""
    config = configuration()
    async with Run(config, [ROOT], links=False, log_dir=tmp_path) as run:
        head = BaseServerConfig.model_validate(dict(run.config["head_server"]))
        session = await asyncio.to_thread(connect, head)
        row = {"responses_create_params": {"input": "hi"}, "_ng_task_index": 7, "_ng_rollout_index": 2}
        running = asyncio.create_task(session.client.post(server_name="agent", url_path="/run", json=row))
        assert session.wait_query is not None
        try:
            async with asyncio.timeout(30):
                while not (calls := await session.wait_query([(7, 2), (8, 0)])):
                    assert not running.done(), (await running).status
                    await asyncio.sleep(0.02)
        finally:
            running.cancel()
            await asyncio.wait({running})

    assert calls == {(7, 2): "policy_model /v1/responses"}


async def test_a_head_server_of_another_version_reports_nothing() -> None:
    """The live view works without the answer."""

    async def reject(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    config = b'"{}"'

    async def serve_config(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.readline()).startswith(b"GET /global_config_dict_yaml"):
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(config), config)
            )
            writer.close()
        else:
            await reject(reader, writer)

    async with await asyncio.start_server(serve_config, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        session = await asyncio.to_thread(connect, BaseServerConfig(host="127.0.0.1", port=port))
        assert session.wait_query is not None
        assert await session.wait_query([(7, 2)]) == {}
