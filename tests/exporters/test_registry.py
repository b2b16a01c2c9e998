"""Exporters are found by entry point, opened from the configuration, and never end a run."""

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from nemo_gym import exporters
from nemo_gym.cli.completion import find_candidates
from nemo_gym.cli.shared.options import resolve_config
from nemo_gym.config import keys as key_table
from nemo_gym.config_types import MLFlowConfig
from nemo_gym.exporters import BaseExporter, ExporterKey, registry
from tools import reference

SECRET = "sk-very-secret-0123"
CONFIG = {
    "mlflow_tracking_uri": "http://127.0.0.1:9",
    "mlflow_experiment_name": "e",
    "mlflow_run_name": "r",
    "policy_api_key": SECRET,
}


class Tracker(BaseExporter):
    """Keeps everything it receives."""

    name = "tracker"
    config_class = MLFlowConfig

    def setup(self, global_config: Mapping[str, Any]) -> None:
        self.received: list[Any] = [dict(global_config)]
        self.closed = 0

    def teardown(self) -> None:
        self.closed += 1

    def _log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        self.received.append((dict(metrics), step))

    def _log_rollouts(self, rollouts: Iterable[Mapping[str, Any]]) -> None:
        self.received.append(list(rollouts))


class BrokenTracker(Tracker):
    """Fails at everything but opening."""

    name = "broken"

    def teardown(self) -> None:
        raise OSError(f"cannot close with {SECRET}")

    def _log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        raise RuntimeError("no room")

    def _log_rollouts(self, rollouts: Iterable[Mapping[str, Any]]) -> None:
        raise RuntimeError("no room")


class TalkativeTracker(Tracker):
    """Puts a secret into its error."""

    def setup(self, global_config: Mapping[str, Any]) -> None:
        raise OSError(f"refused with {SECRET}")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Replace the installed entry points."""

    def install_exporters(**values: str) -> None:
        points = EntryPoints(EntryPoint(name, value, registry.ENTRY_POINT_GROUP) for name, value in values.items())
        monkeypatch.setattr(registry, "entry_points", lambda group: points.select(group=group))

    yield install_exporters
    exporters.teardown_exporters()


@pytest.fixture
def tracker(install: Any) -> Tracker:
    """An open tracker beside a broken one."""
    install(broken=f"{__name__}:BrokenTracker", tracker=f"{__name__}:Tracker")
    opened = exporters.setup_exporters(CONFIG)[1]
    assert isinstance(opened, Tracker)
    return opened


def test_built_in_exporters_are_declared_as_entry_points() -> None:
    """A new exporter is its module and one entry-point line; ours are declared in the same way."""
    assert {"mlflow", "wandb"} <= exporters.find_exporters().keys()


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_an_exporter_declares_every_key_it_reads(name: str) -> None:
    """Commands, checks and reference pages derive from the declaration."""
    exporter = exporters.find_exporters()[name]

    assert {key.name for key in exporter.keys} == set(exporter.config_class.model_fields)
    assert all(key.meaning for key in exporter.keys)


def test_an_exporter_of_another_package_is_opened(install: Any) -> None:
    """A tracker that we do not know works without a change here."""
    install(theirs=f"{__name__}:Tracker")

    assert [exporter.name for exporter in exporters.setup_exporters(CONFIG)] == ["tracker"]


class KeyedTracker(Tracker):
    """A tracker with a configuration key that no other part reads."""

    keys = (ExporterKey("tracker_project", "Report to this project of the tracker."),)


@pytest.fixture
def restored_keys() -> Iterator[None]:
    """Remove the keys that a test registers."""
    before = dict(key_table._keys)
    yield
    key_table._keys.clear()
    key_table._keys.update(before)


@pytest.mark.usefixtures("restored_keys")
def test_the_keys_of_an_exporter_of_another_package_are_checked_completed_and_documented(install: Any) -> None:
    """A new exporter is its module and one entry-point line; no list of keys repeats its own."""
    resolve_config(Namespace(overrides=["+tracker_project=p"]), needs_model=False)
    assert "tracker_project" not in key_table.known_keys()
    install(theirs=f"{__name__}:KeyedTracker")

    warnings = resolve_config(Namespace(overrides=["+tracker_projet=p"]), needs_model=False).warnings

    assert any("did you mean 'tracker_project'?" in warning for warning in warnings)
    assert resolve_config(Namespace(overrides=["+tracker_project=p"]), needs_model=False).warnings == []
    assert "| `tracker_project` |  |  |  | Report to this project of the tracker. |" in reference.config_keys_page()
    assert find_candidates(["eval", "run"], "+tracker_") == ["+tracker_project="]


@pytest.mark.usefixtures("restored_keys")
def test_an_exporter_cannot_redefine_a_key(install: Any) -> None:
    """Datasets read `mlflow_tracking_uri`, too; the table's entry counts."""
    before = dict(key_table.KEYS)

    exporters.register_exporter_keys()
    exporters.register_exporter_keys()

    assert {name: key_table.KEYS[name] for name in before} == before


def test_an_exporter_that_cannot_be_loaded_is_a_warning(install: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A broken package of another author must not end a run."""
    install(gone="no_such_package:Exporter", tracker=f"{__name__}:Tracker")

    assert len(exporters.setup_exporters(CONFIG)) == 1
    assert "exporter gone (no_such_package:Exporter) cannot be loaded" in caplog.text


def test_nothing_is_opened_without_its_keys() -> None:
    """Most runs report to no tracker, and must not pay for it."""
    assert exporters.setup_exporters({"policy_api_key": "x"}) == []


def test_a_masked_configuration_opens_nothing() -> None:
    """A configuration fetched from a head without its token has `****` where the key was."""
    masked = {"wandb_project": "p", "wandb_name": "n", "wandb_api_key": "****"}

    assert exporters.setup_exporters(masked) == []


def test_an_exporter_sees_the_configuration_without_secrets(tracker: Tracker) -> None:
    """Others read what is uploaded."""

    assert SECRET not in str(tracker.received)
    assert tracker.received[0]["mlflow_run_name"] == "r"


def test_one_failing_exporter_costs_a_warning_and_nothing_else(
    tracker: Tracker, caplog: pytest.LogCaptureFixture
) -> None:
    """A night's rollouts do not end because a web page is down."""

    exporters.export_metrics({"mean/reward": 0.5, "nested": {"not": "shown"}, "note": "text"}, step=3)
    exporters.export_rollouts([{"reward": 1.0}])

    assert tracker.received[1:] == [({"mean/reward": 0.5, "note": "text"}, 3), [{"reward": 1.0}]]
    assert [record.message for record in caplog.records] == [
        "broken: metrics were not exported: no room",
        "broken: rollouts were not exported: no room",
    ]


def test_closing_is_safe_to_repeat_and_never_raises(tracker: Tracker, caplog: pytest.LogCaptureFixture) -> None:
    """It is called by the command and again when the process ends."""

    exporters.teardown_exporters()
    exporters.teardown_exporters()

    assert tracker.closed == 1
    assert exporters.get_exporters() == []
    assert "the run may be incomplete" in caplog.text
    assert SECRET not in caplog.text


def test_rollouts_are_exported_without_what_is_huge(tracker: Tracker) -> None:
    """Captured calls hold every conversation a second time."""
    call = {"latency_ms": 5, "request": {"input": "long"}, "response": {}, "response_raw": "x"}
    rollout = {"reward": 1.0, "ng_trajectory": {"turns": []}, "ng_model_call_capture": {"metrics": {}, "calls": [call]}}

    exporters.export_rollouts(lambda: iter([rollout]))

    assert tracker.received[-1] == [
        {"reward": 1.0, "ng_model_call_capture": {"metrics": {}, "calls": [{"latency_ms": 5}]}}
    ]


def test_a_reason_never_shows_a_secret(install: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Trackers like to print the request that failed."""
    install(tracker=f"{__name__}:TalkativeTracker")

    assert exporters.setup_exporters(CONFIG) == []
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
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setitem(sys.modules, "wandb", None)

    assert exporters.setup_exporters(config) == []
    assert f"pip install '{extra}'" in caplog.text


@pytest.mark.parametrize(
    ("config", "warning"),
    [
        ({"wandb_project": "p", "wandb_name": "n"}, "not exporting to wandb; not set: wandb_api_key"),
        ({"mlflow_run_name": "r"}, "not set: mlflow_tracking_uri, mlflow_experiment_name"),
        ({"mlflow_tracking_uri": "http://127.0.0.1:9"}, ""),
        ({}, ""),
    ],
)
def test_an_incomplete_configuration_is_a_warning(
    config: dict[str, str], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it users look for a run on a page where it never was; an address may serve datasets only."""
    assert exporters.setup_exporters(config) == []

    assert warning in caplog.text
    assert bool(caplog.text) == bool(warning)
