"""The servers of a command get a connection for each call in flight."""

import pytest
from omegaconf import OmegaConf

from nemo_gym.cli.shared import servers
from nemo_gym.transport.http_sessions import GlobalAIOHTTPAsyncClientConfig


@pytest.fixture(autouse=True)
def _limit_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "raise_open_files_limit", lambda: None)
    monkeypatch.setattr(servers, "open_files_limit", lambda: 4096)


def test_the_concurrency_of_the_flag_reaches_the_servers(capsys: pytest.CaptureFixture[str]) -> None:
    """Servers read the configuration, not the flags of the command that starts them."""
    config = OmegaConf.create({"policy": {}})

    servers.allow_concurrency(config, 3000)

    assert GlobalAIOHTTPAsyncClientConfig.from_global_config(config).global_aiohttp_connector_limit_per_host == 3000
    assert capsys.readouterr().err == ""


def test_an_open_file_limit_that_is_too_low_is_reported_before_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise the run is slower than asked for, and only the log of a cell says why."""
    servers.allow_concurrency(OmegaConf.create({}), 10_000, cells=2)

    warning = capsys.readouterr().err
    assert "10,000 rollouts at once need 5,256 open files in a process, but the system allows 4,096" in warning
    assert "ulimit -n 5256" in warning


def test_without_the_flag_nothing_changes() -> None:
    """The default of the key applies."""
    config = OmegaConf.create({})
    servers.allow_concurrency(config, None)
    assert config == {}
