"""Find exporters by entry point, open them from the configuration, and send data to all open ones."""

import atexit
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any

from nemo_gym.config.keys import ANY, Key, register_keys, value_of
from nemo_gym.config.omegaconf_adapter import as_dict
from nemo_gym.config.secret_text import scrub_text
from nemo_gym.config.secrets import mask_secrets, secret_values
from nemo_gym.config_types import ExporterConfig
from nemo_gym.exporters.base import BaseExporter
from nemo_gym.keys import NG_MODEL_CALL_CAPTURE_KEY, NG_TRAJECTORY_KEY
from nemo_gym.wire.stored_rollout import StoredRollout

logger = logging.getLogger("nemo_gym.exporters")

ENTRY_POINT_GROUP = "nemo_gym.exporters"
LONGEST_REASON = 500
RAW_CALL_KEYS = frozenset(
    {"request", "response", "model_answer", "request_raw", "response_raw", "tool_calls", "reasoning_content"}
)

_open_exporters: list[BaseExporter] = []


def find_exporters() -> dict[str, type[BaseExporter]]:
    """Return the exporter classes of all installed packages by name; log a warning for one that cannot be loaded."""
    classes: dict[str, type[BaseExporter]] = {}
    for entry_point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
        try:
            classes[entry_point.name] = entry_point.load()
        except Exception as error:
            logger.warning("exporter %s (%s) cannot be loaded: %s", entry_point.name, entry_point.value, error)
    return classes


def register_exporter_keys() -> None:
    """Make the keys of all exporters known to the checks and the reference page of configuration keys."""
    classes = find_exporters().values()
    register_keys(Key(key.name, ANY, key.meaning) for exporter in classes for key in exporter.keys)


def get_exporters() -> list[BaseExporter]:
    """Return the exporters that are open in this process."""
    return list(_open_exporters)


def setup_exporters(global_config_dict: Mapping[str, Any]) -> list[BaseExporter]:
    """Open every exporter whose configuration is complete, and return the open ones; they are closed at exit.

    Exporters that are already open are closed first. This may block for as long as the trackers' timeouts: in an event
    loop, call it on a thread.
    """
    teardown_exporters()
    config = as_dict(global_config_dict)
    masked = mask_secrets(config)
    for name, exporter_class in find_exporters().items():
        config_class = exporter_class.config_class
        try:
            exporter_config = config_class.model_validate({key: config.get(key) for key in config_class.model_fields})
        except ValueError as error:
            logger.warning("not exporting to %s: %s", name, scrub_text(str(error), secret_values(config)))
            continue
        if not exporter_config.is_available:
            _warn_about_missing_keys(name, exporter_class, exporter_config)
            continue
        exporter = exporter_class(exporter_config, str(value_of(config, "results_dir")))
        exporter.secrets = secret_values(config)
        with _warning_on_error(f"not exporting to {name}", exporter):
            exporter.setup(masked)
            _open_exporters.append(exporter)
    if _open_exporters:
        atexit.register(teardown_exporters)
    return get_exporters()


def _warn_about_missing_keys(name: str, exporter_class: type[BaseExporter], config: ExporterConfig) -> None:
    """Warn if keys are missing and another one shows that an export is wanted; an address may serve other purposes."""
    values = config.model_dump()
    missing = [key.name for key in exporter_class.keys if key.is_required and values.get(key.name) is None]
    if missing and any(key.implies_export and values.get(key.name) is not None for key in exporter_class.keys):
        logger.warning("not exporting to %s; not set: %s", name, ", ".join(missing))


def teardown_exporters() -> None:
    """Close all open exporters. Idempotent."""
    while _open_exporters:
        exporter = _open_exporters.pop()
        with _warning_on_error(f"{exporter.name}: the run may be incomplete", exporter):
            exporter.teardown()
    atexit.unregister(teardown_exporters)


def export_metrics(metrics: Mapping[str, Any], step: int | None = None) -> None:
    """Send the numbers and texts among `metrics` to every open exporter; other values are left out."""
    simple = {key: value for key, value in metrics.items() if isinstance(value, bool | int | float | str)}
    for exporter in _open_exporters:
        with _warning_on_error(f"{exporter.name}: metrics were not exported", exporter):
            exporter._log_metrics(simple, step)


def export_rollouts(rollouts: Iterable[Mapping[str, Any]] | Callable[[], Iterable[Mapping[str, Any]]]) -> None:
    """Send rollouts to every open exporter. If they do not fit in memory, pass a function that iterates over them."""
    # Each exporter iterates over the rollouts, so an iterator is read into a list.
    source = rollouts if callable(rollouts) or not _open_exporters else list(rollouts)
    for exporter in _open_exporters:
        with _warning_on_error(f"{exporter.name}: rollouts were not exported", exporter):
            exporter._log_rollouts(without_payloads(source() if callable(source) else source))


def without_payloads(rollouts: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield rollouts without trajectories and bodies of captured calls: both duplicate the conversation."""
    for rollout in rollouts:
        slim = {key: value for key, value in rollout.items() if key != NG_TRAJECTORY_KEY}
        stored = StoredRollout(rollout)
        if stored.capture:
            calls = [
                {key: value for key, value in call.items() if key not in RAW_CALL_KEYS}
                for call in stored.captured_calls
            ]
            slim[NG_MODEL_CALL_CAPTURE_KEY] = {**stored.capture, "calls": calls}
        yield slim


@contextmanager
def _warning_on_error(consequence: str, exporter: BaseExporter) -> Iterator[None]:
    """Log an exception of the exporter as a warning, without secrets, instead of raising it."""
    try:
        yield
    except Exception as error:
        reason = scrub_text(str(error) or type(error).__name__, exporter.secrets)
        logger.warning("%s: %s", consequence, " ".join(reason.split())[:LONGEST_REASON])
        logger.debug("%s", consequence, exc_info=True)
