"""Which exporters are open, and what is sent to all of them."""

import atexit
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from omegaconf import OmegaConf

from nemo_gym.config.secrets import mask_secrets, scrubbed, secret_values
from nemo_gym.config_types import ExporterConfig, MLFlowConfig, WANDBConfig
from nemo_gym.exporters.base import BaseExporter, primitive, without_payloads
from nemo_gym.exporters.mlflow_exporter import MLflowExporter
from nemo_gym.exporters.wandb_exporter import WandbExporter

logger = logging.getLogger("nemo_gym.exporters")

EXPORTERS: dict[str, tuple[type[ExporterConfig], type[BaseExporter]]] = {
    "wandb": (WANDBConfig, WandbExporter),
    "mlflow": (MLFlowConfig, MLflowExporter),
}
"""Tracker -> what it reads from the configuration, and what talks to it."""

NEEDED = {
    "wandb": ("wandb_project", "wandb_name", "wandb_api_key"),
    "mlflow": ("mlflow_tracking_uri", "mlflow_experiment_name", "mlflow_run_name"),
}
NAMES_A_RUN = frozenset({"wandb_project", "wandb_name", "mlflow_experiment_name", "mlflow_run_name"})

_open: list[BaseExporter] = []
LONGEST_REASON = 500


def get_exporters() -> list[BaseExporter]:
    """The exporters that are open in this process."""
    return list(_open)


def setup_exporters(global_config_dict: Mapping[str, Any]) -> list[BaseExporter]:
    """Open every exporter the configuration has everything for; they are closed when the process ends at the latest.

    Earlier ones are closed first. It may take as long as the trackers' own timeouts: call it in a thread from a loop.
    """
    teardown_exporters()
    plain = _plain(global_config_dict)
    masked = mask_secrets(plain)
    for name, (config_class, exporter_class) in EXPORTERS.items():
        config = config_class.model_validate({key: plain.get(key) for key in config_class.model_fields})
        if not config.is_available:
            _tell_what_is_missing(name, config)
            continue
        exporter = exporter_class(config, str(plain.get("results_dir") or "results"))
        exporter.secrets = secret_values(plain)
        if _attempt(f"not exporting to {name}", exporter, partial(exporter.setup, masked)):
            _open.append(exporter)
    if _open:
        atexit.register(teardown_exporters)
    return get_exporters()


def _tell_what_is_missing(name: str, config: ExporterConfig) -> None:
    """Whoever names a project or a run wants to see it there; an address alone may be meant for something else."""
    given = {key for key, value in config.model_dump().items() if value is not None}
    needed = [key for key in NEEDED.get(name, ()) if key not in given]
    if needed and given & NAMES_A_RUN:
        logger.warning("not exporting to %s, for it is not set: %s", name, ", ".join(needed))


def teardown_exporters() -> None:
    """Close all of them. Safe to repeat."""
    while _open:
        exporter = _open.pop()
        _attempt(f"{exporter.name}: the run may be incomplete", exporter, exporter.teardown)
    atexit.unregister(teardown_exporters)


def export_metrics(metrics: Mapping[str, Any], step: int | None = None) -> None:
    """Send numbers (as metrics) and texts to every open exporter; anything else is left out."""
    chosen = primitive(metrics)
    for exporter in _open:
        _attempt(f"{exporter.name}: metrics were not exported", exporter, partial(exporter._log_metrics, chosen, step))


def export_rollouts(rollouts: Iterable[Mapping[str, Any]] | Callable[[], Iterable[Mapping[str, Any]]]) -> None:
    """Send rollouts to every open exporter. Give a function that reads them anew when they are too many for a list."""
    if not _open:
        return
    held = rollouts if callable(rollouts) else list(rollouts)
    for exporter in _open:
        read = held() if callable(held) else held
        _attempt(
            f"{exporter.name}: rollouts were not exported",
            exporter,
            partial(exporter._log_rollouts, without_payloads(read)),
        )


def _attempt(consequence: str, exporter: BaseExporter, work: Callable[[], None]) -> bool:
    """Do it; whatever a tracker does wrong is told, without secrets, and stays here."""
    try:
        work()
    except Exception as error:
        reason = scrubbed(str(error) or type(error).__name__, exporter.secrets)
        logger.warning("%s: %s", consequence, " ".join(reason.split())[:LONGEST_REASON])
        logger.debug("%s", consequence, exc_info=True)
        return False
    return True


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    plain = OmegaConf.to_container(config, resolve=True) if OmegaConf.is_config(config) else config
    return {str(key): value for key, value in dict(plain).items()}  # type: ignore[arg-type]
