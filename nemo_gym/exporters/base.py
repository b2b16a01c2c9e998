"""What every exporter does, and what it is given."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nemo_gym.config_types import ExporterConfig
from nemo_gym.errors import GymError
from nemo_gym.keys import NG_MODEL_CALL_CAPTURE_KEY, NG_TRAJECTORY_KEY

RAW_CALL_KEYS = frozenset({"request", "response", "request_raw", "response_raw"})


class ExporterNotInstalled(GymError, ImportError):
    """The tracker's own package is missing."""


class BaseExporter:
    """One tracker. Subclasses talk to it; any exception they raise becomes a warning."""

    name = "exporter"

    def __init__(self, config: ExporterConfig, results_dir: str = "results") -> None:
        self.config = config
        self.results_dir = results_dir
        self.url = ""
        """Where to look at the run."""
        self.secrets: list[str] = []
        """Never shown, whatever the tracker says about them."""

    def setup(self, global_config: Mapping[str, Any]) -> None:
        """Open a run and store the configuration, which has no secrets in it any more."""
        raise NotImplementedError

    def teardown(self) -> None:
        """Close the run. Safe to repeat."""
        raise NotImplementedError

    def _log_config(self, config: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def _log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        raise NotImplementedError

    def _log_rollouts(self, rollouts: Iterable[Mapping[str, Any]]) -> None:
        raise NotImplementedError


def without_payloads(rollouts: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rollouts as they are exported: captured calls keep their figures, not what was said in them twice."""
    for rollout in rollouts:
        slim = {key: value for key, value in rollout.items() if key != NG_TRAJECTORY_KEY}
        capture = slim.get(NG_MODEL_CALL_CAPTURE_KEY)
        if isinstance(capture, Mapping):
            calls = [_figures(call) for call in capture.get("calls") or () if isinstance(call, Mapping)]
            slim[NG_MODEL_CALL_CAPTURE_KEY] = {**capture, "calls": calls}
        yield slim


def primitive(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics a tracker can draw or show: numbers, truth values and texts."""
    return {key: value for key, value in metrics.items() if isinstance(value, bool | int | float | str)}


def _figures(call: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in call.items() if key not in RAW_CALL_KEYS}
