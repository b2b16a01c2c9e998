"""What of a run's metrics reaches trackers, and under which names."""

import asyncio
import threading
from pathlib import Path

import pytest
from omegaconf import DictConfig

from nemo_gym.cli import tracking as module
from nemo_gym.cli.tracking import Tracking, exported_metrics


def test_metrics_carry_the_name_of_their_agent() -> None:
    """Two agents in one run must not overwrite each other."""
    entries = [
        {
            "agent_ref": {"name": "a"},
            "agent_metrics": {"mean/reward": 0.5, "x": 1},
            "key_metrics": {"mean/reward": 0.5},
        },
        {"agent_ref": {"name": "b"}, "agent_metrics": {"mean/reward": 0.7}, "key_metrics": {}},
    ]

    assert dict(exported_metrics(entries)) == {
        "a/mean/reward": 0.5,
        "a/x": 1,
        "key_metrics/a/mean/reward": 0.5,
        "b/mean/reward": 0.7,
    }


async def test_a_run_that_names_no_tracker_pays_nothing_for_them(tmp_path: Path) -> None:
    """Most runs report to nobody."""
    tracking = Tracking(DictConfig({"policy_api_key": "x"}))

    assert await tracking.export(tmp_path / "x.jsonl", [], upload=True) == {}
    await tracking.close()


async def test_a_tracker_that_does_not_open_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a web page does not answer must end the command all the same."""
    release = threading.Event()
    monkeypatch.setattr(module, "OPENING_SECONDS", 0.05)
    monkeypatch.setattr(module, "setup_exporters", lambda _: release.wait(60))

    tracking = Tracking(DictConfig({}))
    await asyncio.wait_for(tracking.close(), 30)
    release.set()
