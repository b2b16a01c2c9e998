"""The stores of a process: built from the configuration, or installed by a program."""

import importlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nemo_gym.token_id_capture.config import (
    TOKEN_ID_CAPTURE_BLOCK,
    TokenCaptureConfigError,
    TokenIdCaptureConfig,
    no_destination,
    token_id_capture_config,
)
from nemo_gym.token_id_capture.context import CaptureContext
from nemo_gym.token_id_capture.lineage import InMemoryLineageStore, LineageResolver
from nemo_gym.token_id_capture.lineage_files import FileLineageStore
from nemo_gym.token_id_capture.protocols import TokenSink, TokenSource
from nemo_gym.token_id_capture.store import TokenCaptureStore

logger = logging.getLogger(__name__)

_SINK_METHODS = ("put", "mark_incomplete", "close")
_SOURCE_METHODS = ("freeze", "drop", "close")
_RESOLVER_METHODS = ("resolve", "is_process_shared", "close")
LEDGER_METHODS = ("record", "record_failure", "manifest", "has_rows")


@dataclass
class _InstalledStores:
    sink: TokenSink | None = None
    source: TokenSource | None = None
    lineage: LineageResolver | None = None


_installed = _InstalledStores()


def install_token_sink(sink: TokenSink | None) -> None:
    """Use this sink in the servers of this process instead of the configured one; None removes it."""
    _installed.sink = sink


def install_token_source(source: TokenSource | None) -> None:
    """Use this source in the collector of this process; None removes it."""
    _installed.source = source


def install_lineage_store(store: LineageResolver | None) -> None:
    """Use this lineage store in the servers of this process; None removes it."""
    _installed.lineage = store


def capture_template(
    config: object, *, model_ref: str | None = None, num_workers: int | None = None
) -> CaptureContext | None:
    """Return the capture context that a model server copies for each call, with its stores; None if capture is off.

    Raises:
        TokenCaptureConfigError: a store is missing, cannot be built, or lacks methods.
    """
    settings = token_id_capture_config(config)
    if not settings.enabled:
        return None
    sink = _sink(settings)
    lineage = _lineage_store(settings)
    is_custom_sink = settings.sink is not None or _installed.sink is not None
    if lineage is None and is_custom_sink:
        if not settings.allow_unresolved_continuations:
            raise TokenCaptureConfigError(
                "a sink needs a lineage store, or every rollout with more than one call is masked",
                where=TOKEN_ID_CAPTURE_BLOCK,
                fix=f"set {TOKEN_ID_CAPTURE_BLOCK}.lineage_store, or allow_unresolved_continuations: true",
            )
        logger.warning("token id capture has no lineage store: rollouts with more than one model call will be masked")
    if sink is None and not settings.external_staging and settings.rebuild_response:
        raise no_destination()
    if (num_workers or 1) > 1 and (lineage is None or not lineage.is_process_shared()):
        raise TokenCaptureConfigError(
            f"{num_workers} workers need a lineage store that they share",
            where=TOKEN_ID_CAPTURE_BLOCK,
            fix="set num_workers to 1, or lineage_store to one whose is_process_shared() is true",
        )
    if settings.external_staging:
        _check_ledger(lineage)
    return CaptureContext("", "", sink, lineage, settings.delta_records, settings.external_staging, model_ref=model_ref)


def token_source(config: object) -> TokenSource | None:
    """Return the source that the collector reads; None if results are not rebuilt.

    Raises:
        TokenCaptureConfigError: results are rebuilt, but the collector has no source.
    """
    settings = token_id_capture_config(config)
    if not settings.enabled or not settings.rebuild_response:
        return None
    if _installed.source is not None:
        return _check_methods(_installed.source, _SOURCE_METHODS, "installed source")  # type: ignore[no-any-return]
    sink: Any = _installed.sink or (_build(settings.sink, settings.sink_kwargs) if settings.sink else None)
    if sink is not None and all(hasattr(sink, method) for method in _SOURCE_METHODS):
        return sink  # type: ignore[no-any-return]
    if settings.sink is None and settings.dir is not None:
        return TokenCaptureStore(settings.dir)
    raise TokenCaptureConfigError(
        "results are to be rebuilt, but this process has no source of the captured tokens",
        where=TOKEN_ID_CAPTURE_BLOCK,
        fix=f"+{TOKEN_ID_CAPTURE_BLOCK}.dir=/an/absolute/folder, install_token_source(…), or rebuild_response=false",
    )


def require_control_token(config: object) -> str:
    """Return the token of the control route from the environment.

    Raises:
        TokenCaptureConfigError: the variable is not set.
    """
    variable = token_id_capture_config(config).control_auth_token_env
    token = os.environ.get(variable)
    if not token:
        raise TokenCaptureConfigError(
            f"external_staging needs a control token, but {variable} is not set",
            where=TOKEN_ID_CAPTURE_BLOCK,
            fix=f"export {variable}=<a random text>, here and where the framework runs",
        )
    return token


def _sink(settings: TokenIdCaptureConfig) -> TokenSink | None:
    if settings.external_staging:
        return None
    if _installed.sink is not None:
        return _check_methods(_installed.sink, _SINK_METHODS, "installed sink")  # type: ignore[no-any-return]
    if settings.sink is not None:
        sink = _build(settings.sink, settings.sink_kwargs)
        return _check_methods(sink, _SINK_METHODS, f"sink {settings.sink}")  # type: ignore[no-any-return]
    return TokenCaptureStore(settings.dir) if settings.dir is not None else None


def _lineage_store(settings: TokenIdCaptureConfig) -> LineageResolver | None:
    store: Any = _installed.lineage
    label = "installed lineage store"
    if store is None and settings.lineage_store is not None:
        store = _build(settings.lineage_store, settings.lineage_store_kwargs)
        label = f"lineage store {settings.lineage_store}"
    if store is not None:
        return _check_methods(store, _RESOLVER_METHODS, label)  # type: ignore[no-any-return]
    if settings.sink is None and _installed.sink is None and settings.dir is not None:
        return FileLineageStore(settings.dir)
    return None


def _check_ledger(lineage: object) -> None:
    missing = [name for name in (*_RESOLVER_METHODS, *LEDGER_METHODS) if not hasattr(lineage, name)]
    if missing or isinstance(lineage, InMemoryLineageStore):
        raise TokenCaptureConfigError(
            "external_staging needs a lineage store that keeps a ledger" + (f"; missing: {missing}" if missing else ""),
            where=TOKEN_ID_CAPTURE_BLOCK,
            fix=f"set {TOKEN_ID_CAPTURE_BLOCK}.dir, or lineage_store to a CaptureLedger",
        )


def _build(path: str, arguments: Mapping[str, Any]) -> Any:
    """Build an object of the class `module:Class`."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)(**arguments)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise TokenCaptureConfigError(f"{path} cannot be built: {error}", where=TOKEN_ID_CAPTURE_BLOCK) from error


def _check_methods(store: Any, methods: tuple[str, ...], label: str) -> Any:
    missing = [name for name in methods if not callable(getattr(store, name, None))]
    if missing:
        raise TokenCaptureConfigError(f"the {label} lacks {', '.join(missing)}", where=TOKEN_ID_CAPTURE_BLOCK)
    return store
