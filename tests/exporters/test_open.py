"""Exporters are opened from the configuration, and none of them can end a run."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from nemo_gym import exporters
from nemo_gym.config_types import MLFlowConfig
from nemo_gym.exporters import BaseExporter
from nemo_gym.exporters import open as opening

SECRET = "sk-very-secret-0123"
CONFIG = {
    "mlflow_tracking_uri": "http://127.0.0.1:9",
    "mlflow_experiment_name": "e",
    "mlflow_run_name": "r",
    "policy_api_key": SECRET,
}


class Tracker(BaseExporter):
    """Remembers what it is told."""

    name = "tracker"

    def setup(self, global_config: Mapping[str, Any]) -> None:
        self.told: list[Any] = [dict(global_config)]
        self.closed = 0

    def teardown(self) -> None:
        self.closed += 1

    def _log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        self.told.append((dict(metrics), step))

    def _log_rollouts(self, rollouts: Iterable[Mapping[str, Any]]) -> None:
        self.told.append(list(rollouts))


class Broken(Tracker):
    """Fails at everything but opening."""

    name = "broken"

    def teardown(self) -> None:
        raise OSError(f"cannot close with {SECRET}")

    def _log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        raise RuntimeError("no room")

    def _log_rollouts(self, rollouts: Iterable[Mapping[str, Any]]) -> None:
        raise RuntimeError("no room")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    known: dict[str, Any] = {"broken": (MLFlowConfig, Broken), "tracker": (MLFlowConfig, Tracker)}
    monkeypatch.setattr(opening, "EXPORTERS", known)
    yield known
    exporters.teardown_exporters()


def test_nothing_is_opened_unless_the_configuration_says_where(registry: dict[str, Any]) -> None:
    """Most runs report to nobody, and must not pay for it."""
    assert exporters.setup_exporters({"policy_api_key": "x"}) == []


def test_a_masked_configuration_opens_nothing() -> None:
    """A configuration fetched from a head without its token has `****` where the key was."""
    masked = {"wandb_project": "p", "wandb_name": "n", "wandb_api_key": "****"}

    assert exporters.setup_exporters(masked) == []


def test_an_exporter_sees_the_configuration_without_secrets(registry: dict[str, Any]) -> None:
    """What is uploaded is read by others."""
    tracker = exporters.setup_exporters(CONFIG)[1]

    assert isinstance(tracker, Tracker)
    assert SECRET not in str(tracker.told)
    assert tracker.told[0]["mlflow_run_name"] == "r"


def test_one_failing_exporter_costs_a_warning_and_nothing_else(
    registry: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A night's rollouts do not end because a web page is down."""
    tracker = exporters.setup_exporters(CONFIG)[1]

    exporters.export_metrics({"mean/reward": 0.5, "nested": {"not": "shown"}, "note": "text"}, step=3)
    exporters.export_rollouts([{"reward": 1.0}])

    assert isinstance(tracker, Tracker)
    assert tracker.told[1:] == [({"mean/reward": 0.5, "note": "text"}, 3), [{"reward": 1.0}]]
    assert [record.message for record in caplog.records] == [
        "broken: metrics were not exported: no room",
        "broken: rollouts were not exported: no room",
    ]


def test_closing_is_safe_to_repeat_and_never_raises(registry: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """It is called by the command and again when the process ends."""
    tracker = exporters.setup_exporters(CONFIG)[1]

    exporters.teardown_exporters()
    exporters.teardown_exporters()

    assert isinstance(tracker, Tracker)
    assert tracker.closed == 1
    assert exporters.get_exporters() == []
    assert "the run may be incomplete" in caplog.text
    assert SECRET not in caplog.text


def test_rollouts_are_exported_without_what_is_huge(registry: dict[str, Any]) -> None:
    """Captured calls hold every conversation a second time."""
    tracker = exporters.setup_exporters(CONFIG)[1]
    call = {"latency_ms": 5, "request": {"input": "long"}, "response": {}, "response_raw": "x"}
    rollout = {"reward": 1.0, "ng_trajectory": {"turns": []}, "ng_model_call_capture": {"metrics": {}, "calls": [call]}}

    exporters.export_rollouts(lambda: iter([rollout]))

    assert isinstance(tracker, Tracker)
    assert tracker.told[-1] == [{"reward": 1.0, "ng_model_call_capture": {"metrics": {}, "calls": [{"latency_ms": 5}]}}]


def test_a_reason_never_shows_a_secret(registry: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """Trackers like to print the request that failed."""

    class Telltale(Tracker):
        def setup(self, global_config: Mapping[str, Any]) -> None:
            raise OSError(f"refused with {SECRET}")

    registry["tracker"] = (MLFlowConfig, Telltale)

    assert len(exporters.setup_exporters(CONFIG)) == 1
    assert "not exporting to tracker: refused with" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("config", "extra"),
    [
        (CONFIG, "nemo-gym[mlflow]"),
        ({"wandb_project": "p", "wandb_name": "n", "wandb_api_key": "k"}, "nemo-gym[wandb]"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    config: dict[str, Any], extra: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader of the warning knows what to type."""
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)

    assert exporters.setup_exporters(config) == []
    assert f"pip install '{extra}'" in caplog.text


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"wandb_project": "p", "wandb_name": "n"}, "not exporting to wandb, for it is not set: wandb_api_key"),
        ({"mlflow_run_name": "r"}, "not set: mlflow_tracking_uri, mlflow_experiment_name"),
        ({"mlflow_tracking_uri": "http://127.0.0.1:9"}, ""),
        ({}, ""),
    ],
)
def test_half_a_configuration_is_told(config: dict[str, str], told: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody shall look for a run on a page where it never was; an address may be there for datasets only."""
    assert exporters.setup_exporters(config) == []

    assert told in caplog.text
    assert bool(caplog.text) == bool(told)
