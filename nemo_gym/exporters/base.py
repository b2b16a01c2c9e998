"""The interface of an exporter, and the configuration keys it declares."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from nemo_gym.config_types import ExporterConfig
from nemo_gym.errors import GymError


class ExporterNotInstalled(GymError, ImportError):
    """The tracker's package is not installed."""


@dataclass(frozen=True)
class ExporterKey:
    """A configuration key of an exporter. Commands, checks and reference pages are derived from these keys."""

    name: str
    meaning: str
    is_required: bool = True
    implies_export: bool = False
    """True if this key alone indicates that the user wants to export; then other missing keys cause a warning."""


class BaseExporter:
    """Base class of exporters: each subclass sends data to one tracker. Its exceptions are logged as warnings."""

    name: ClassVar[str] = "exporter"
    config_class: ClassVar[type[ExporterConfig]] = ExporterConfig
    """The pydantic model of the exporter's configuration; its fields are the names of `keys`."""
    keys: ClassVar[tuple[ExporterKey, ...]] = ()
    title: ClassVar[str] = ""
    """Name of the tracker for people."""
    package: ClassVar[str] = ""
    """The Python module that the exporter imports when it is used."""
    install_command: ClassVar[str] = ""
    """Installs `package`."""

    def __init__(self, config: ExporterConfig, results_dir: str = "results") -> None:
        self.config = config
        self.results_dir = results_dir
        self.url = ""
        """Address of the run's page."""
        self.secrets: list[str] = []
        """Texts that are removed from every message."""

    def setup(self, global_config: Mapping[str, Any]) -> None:
        """Open a run and store the configuration, whose secrets are already masked."""
        raise NotImplementedError

    def not_installed(self, error: ImportError) -> ExporterNotInstalled:
        """Return the error to raise if `package` cannot be imported."""
        return ExporterNotInstalled(f"{self.package} cannot be imported ({error})", fix=self.install_command)

    def teardown(self) -> None:
        """Close the run. Idempotent."""
        raise NotImplementedError

    def _log_config(self, config: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def _log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        raise NotImplementedError

    def _log_rollouts(self, rollouts: Iterable[Mapping[str, Any]]) -> None:
        raise NotImplementedError
