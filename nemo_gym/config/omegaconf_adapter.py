"""Convert OmegaConf trees to plain data, and make resolvers remember secrets.

OmegaConf's private methods are used only here; `tests/config/test_omegaconf_adapter.py` fails when they change.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.basecontainer import BaseContainer
from omegaconf.errors import OmegaConfBaseException

from nemo_gym.config.secret_names import is_secret_name
from nemo_gym.config.secret_text import has_known_secret, is_public_value, remember_secrets

RESOLVE_ERRORS = (OmegaConfBaseException, RecursionError, ValueError, TypeError, OSError)
"""Errors of resolving an interpolation; a resolver such as `oc.decode` or `oc.env` may raise its own."""


def as_dict(config: Any, *, resolve: bool = True) -> dict[str, Any]:
    """Return a configuration or one of its blocks as plain data; {} for anything that is not a mapping.

    A `${…}` that cannot be resolved, which the checks allow in values that no server uses, keeps its text.
    """
    if OmegaConf.is_config(config):
        try:
            config = OmegaConf.to_container(config, resolve=resolve)
        except RESOLVE_ERRORS:
            config = resolve_leaves(config)
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


DIRECTIVES = ("inherit_from", "copy")
_PASSING_RESOLVERS = {"oc.create", "oc.decode", "oc.deprecated", "oc.select", "oc.dict.keys", "oc.dict.values"}
"""Resolvers whose result is secret only if an argument is."""
_PUBLIC_RESOLVERS = {*DIRECTIVES, "now", "hydra"}


def register_resolvers() -> None:
    """Register resolvers that return directives unchanged, and make the others remember the secrets that they return.

    `${oc.env:…}`, and any resolver that other code registered (`${vault:…}`), return secrets; `secret_text` masks them.
    """
    for word in DIRECTIVES:
        if not OmegaConf.has_resolver(word):
            OmegaConf.register_new_resolver(word, lambda path, word=word: f"${{{word}:{path}}}")
    for name, resolver in BaseContainer._resolvers.items():
        if name not in _PUBLIC_RESOLVERS and not isinstance(resolver, _RememberingResolver):
            BaseContainer._resolvers[name] = _RememberingResolver(name, resolver)


class _RememberingResolver:
    """A resolver of OmegaConf that remembers the secrets it returns."""

    def __init__(self, name: str, resolver: Callable[..., Any]) -> None:
        self._name = name
        self._resolver = resolver

    def __call__(self, root: Any, parent: Any, node: Any, arguments: Sequence[Any], texts: Sequence[str]) -> Any:
        if self._name in _PASSING_RESOLVERS:
            is_secret = any(has_known_secret(text) for text in _texts_in(arguments))
        elif self._name == "oc.env":  # the default of an unset variable is secret only because of its name
            is_secret = not arguments or str(arguments[0]) in os.environ or is_secret_name(str(arguments[0]))
        else:
            is_secret = True
        result = self._resolver(root, parent, node, arguments, texts)
        if is_secret:
            remember_secrets(text for text in _texts_in(result) if not is_public_value(text))
        return result


def _texts_in(value: Any) -> Iterator[str]:
    """Yield every text and number in a value as text, without resolving interpolations."""
    value = as_plain_value(value, resolve=False)
    if isinstance(value, str | bytes):
        yield value if isinstance(value, str) else value.decode("utf-8", "replace")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts_in(item)


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
