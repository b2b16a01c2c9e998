"""Convert OmegaConf trees to plain data.

All use of OmegaConf's private methods is in this module; `tests/config/test_omega.py` fails when they change.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

RESOLVE_ERRORS = (OmegaConfBaseException, RecursionError, ValueError, TypeError, OSError)
"""Errors of resolving an interpolation; a resolver such as `oc.decode` or `oc.env` may raise its own."""


def as_dict(config: Any, *, resolve: bool = True) -> dict[str, Any]:
    """Return a configuration or one of its blocks as plain data; {} for anything that is not a mapping."""
    if OmegaConf.is_config(config):
        config = OmegaConf.to_container(config, resolve=resolve)
    if not isinstance(config, Mapping):
        return {}
    return {str(key): as_plain_value(value, resolve=resolve) for key, value in config.items()}


def as_plain_value(value: Any, *, resolve: bool = True) -> Any:
    """Return a value of a configuration as plain data."""
    return OmegaConf.to_container(value, resolve=resolve) if OmegaConf.is_config(value) else value


def resolve_leaves(value: Any) -> Any:
    """Return a value as plain data, where every interpolation that cannot be resolved keeps its text."""
    if not OmegaConf.is_config(value) or is_empty_node(value) or is_interpolation_node(value):
        return as_plain_value(value, resolve=False)
    leaves: dict[Any, Any] = {}
    for key, unresolved in unresolved_items(value):
        try:
            leaves[key] = as_plain_value(value[key])
        except RESOLVE_ERRORS:
            leaves[key] = resolve_leaves(unresolved)
    return leaves if isinstance(value, DictConfig) else list(leaves.values())


def register_resolvers() -> None:
    """Register resolvers that leave `${inherit_from:…}` and `${copy:…}` unchanged; `directives` expands them."""
    for word in ("inherit_from", "copy"):
        if not OmegaConf.has_resolver(word):
            OmegaConf.register_new_resolver(word, lambda path, word=word: f"${{{word}:{path}}}")


def is_empty_node(node: Any) -> bool:
    """Return whether an OmegaConf mapping or list is None or `???`."""
    return OmegaConf.is_config(node) and bool(node._is_none() or node._is_missing())


def is_interpolation_node(node: Any) -> bool:
    """Return whether an OmegaConf mapping or list is a `${…}`."""
    return OmegaConf.is_config(node) and bool(node._is_interpolation())


def unresolved_items(container: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the keys (or indices) and values of a mapping or list without resolving any interpolation."""
    if isinstance(container, DictConfig):
        yield from container.items_ex(resolve=False)
    elif isinstance(container, ListConfig):
        yield from enumerate(container._iter_ex(resolve=False))
    elif isinstance(container, Mapping):
        yield from container.items()
    else:
        yield from enumerate(container)
