"""Secret masking: find the secrets in a configuration, and mask them in trees and `repr`.

A value is secret because of its origin (the environment, a resolver; see `secret_text`), because its field is declared
`Secret`, because of its name (`policy_api_key`, `hf_token`, `password`) or because it is the user part of a URL.
A secret may be a number, but a boolean is never secret. Masking is for display only: clients get the real value.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from nemo_gym.config import omegaconf_adapter as omega
from nemo_gym.config.secret_names import is_secret_block, is_secret_item, is_secret_name, is_secret_value_key
from nemo_gym.config.secret_text import MASK, assigned_secrets, is_public_value, scrub_text
from nemo_gym.keys import SERVER_TYPES

_SHORTEST_SCRUBBED = 6
"""Shorter secrets are not replaced in other texts, because they would match ordinary text."""


_KEYS_OF_SERVERS = frozenset({*SERVER_TYPES, "num_repeats"})
"""Keys whose values are mappings by the name of a server: implementations, and repeats by agent."""


class Secret(str):
    """A string whose `repr` is masked; otherwise it behaves like the string."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"'{MASK}'"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            cls,
            core_schema.str_schema(),
            serialization=core_schema.plain_serializer_function_ser_schema(str, return_schema=core_schema.str_schema()),
        )


def redact_text(text: str, config: Any) -> str:
    """Mask in `text` the secret values of `config`, and everything that `mask_text` masks."""
    return scrub_text(text, secret_values(config))


def secret_values(config: Any) -> list[str]:
    """Return the secrets in `config`, except short ones. Longest first: a secret inside another is replaced later."""
    secrets = {value for value in _iter_secrets(config, secret=False) if len(value) >= _SHORTEST_SCRUBBED}
    return sorted(secrets, key=len, reverse=True)


def mask_secrets(container: Any) -> Any:
    """Return a masked copy of plain or OmegaConf data."""
    if OmegaConf.is_config(container):
        masked = copy.deepcopy(container)
        mask_in_place(masked)
        return masked
    return _mask_copy(container, secret_values(container), secret=False)


def mask_in_place(container: Any) -> None:
    """Overwrite every secret in a mutable container, including interpolations whose values contain a secret."""
    if omega.is_empty_node(container):
        return
    secrets = secret_values(container)
    plain = omega.as_plain_value(container, resolve=False)
    _overwrite(container, plain, _mask_copy(plain, secrets, secret=False))
    resolved = omega.resolve_leaves(container)  # now `${…}` that refer to masked values have the mask as value
    _overwrite(container, resolved, _mask_copy(resolved, secrets, secret=False))


def _overwrite(node: Any, plain: Any, masked: Any) -> None:
    """Replace every leaf and `${…}` in `node` whose value in `plain` differs from that in `masked`.

    A missing value (`???`) stays missing. Nested containers stay the same objects.
    """
    for key, value in list(omega.unresolved_items(node)):
        is_container = isinstance(value, dict | list | DictConfig | ListConfig)
        if omega.is_interpolation_node(value) or not is_container:
            if plain[key] != masked[key] and value != "???":
                text = masked[key]  # a `${…}` with a masked part may be malformed, so it is replaced as a whole
                node[key] = MASK if isinstance(text, str) and "${" in text else text
        elif not omega.is_empty_node(value):
            _overwrite(value, plain[key], masked[key])


class MaskedRepr:
    """An object whose `repr` is that of `value` without secrets, also in nested models; with `secret`, all leaves."""

    def __init__(self, value: Any, *, secret: bool = False, names: bool = False) -> None:
        self.value = value
        self.secret = secret
        self.names = names
        """The keys of the value are names of servers."""

    def _children(self, value: Any) -> "Iterator[tuple[Any, MaskedRepr]]":
        for key, child, is_secret in _children(value, self.secret, self.names):
            yield key, MaskedRepr(child, secret=is_secret, names=_has_server_names(key))

    def __repr__(self) -> str:
        value = self.value
        if isinstance(value, BaseModel):
            fields = self._children(value)
            return f"{type(value).__name__}({', '.join(f'{name}={masked!r}' for name, masked in fields)})"
        value = omega.as_plain_value(value, resolve=False)
        if isinstance(value, Mapping):
            return repr(dict(self._children(value)))
        if isinstance(value, list | tuple):
            items = [MaskedRepr(item, secret=is_secret) for _, item, is_secret in _children(value, self.secret)]
            return repr(tuple(items) if isinstance(value, tuple) else items)
        return repr(_mask_leaf(value, [], secret=self.secret))


def iter_fields(model: BaseModel) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each field of a model, extra fields included."""
    yield from model.__dict__.items()
    yield from (model.model_extra or {}).items()


def _children(node: Any, secret: bool, names: bool = False) -> Iterator[tuple[Any, Any, bool]]:
    """Yield keys and values of a model, mapping or list, and whether the leaves of the value are secret.

    They are if those of the container are (`secret`), or because of the key, a field `name`, or the item before. With
    `names`, the keys are names of servers, which say nothing about their values.
    """
    if isinstance(node, list | tuple):
        yield from ((index, item, secret or is_secret_item(node, index)) for index, item in enumerate(node))
        return
    block = dict(iter_fields(node)) if isinstance(node, BaseModel) else node
    for key, value in block.items():
        if names:
            yield key, value, secret
        elif isinstance(value, Mapping):
            yield key, value, secret or is_secret_block(str(key), value)
        else:
            yield key, value, secret or is_secret_name(str(key)) or is_secret_value_key(str(key), block)


def _has_server_names(key: Any) -> bool:
    """Return whether the keys of the mapping under `key` are names of servers."""
    return key in _KEYS_OF_SERVERS


def _iter_secrets(node: Any, *, secret: bool, names: bool = False) -> Iterator[str]:
    """Yield the secrets in plain, OmegaConf or pydantic data; with `secret`, all leaves outside nested blocks.

    With `names`, the keys of a mapping are names of servers.
    """
    node = dict(iter_fields(node)) if isinstance(node, BaseModel) else omega.resolve_leaves(node)
    if isinstance(node, Secret) or (secret and isinstance(node, str | int | float) and not isinstance(node, bool)):
        text = str(node)
        if text and "${" not in text and text not in (MASK, "???"):
            yield text
    elif isinstance(node, str):
        yield from assigned_secrets(node)
    elif isinstance(node, Mapping):
        blocks = {key: value for key, value in node.items() if isinstance(value, Mapping)}
        leaves = {key: value for key, value in node.items() if key not in blocks}
        for key, value, is_secret in [*_children(leaves, secret, names), *_children(blocks, secret=False, names=names)]:
            yield from _iter_secrets(value, secret=is_secret, names=_has_server_names(key))
    elif isinstance(node, list | tuple):
        for _, item, is_secret in _children(node, secret):
            yield from _iter_secrets(item, secret=is_secret)


def _mask_copy(node: Any, secrets: list[str], *, secret: bool, names: bool = False) -> Any:
    """Return a copy of plain data with secrets masked; with `secret`, all leaves are secret.

    With `names`, the keys of a mapping are names of servers.
    """
    if isinstance(node, BaseModel | Mapping):
        return {
            key: _mask_copy(value, secrets, secret=is_secret, names=_has_server_names(key))
            for key, value, is_secret in _children(node, secret, names)
        }
    if isinstance(node, list | tuple):
        return [_mask_copy(item, secrets, secret=is_secret) for _, item, is_secret in _children(node, secret)]
    return _mask_leaf(node, secrets, secret=secret)


def _mask_leaf(value: Any, secrets: list[str], *, secret: bool) -> Any:
    """Return a value without its secrets. A number is masked as a whole; None, booleans and "" are never masked."""
    if value is None or isinstance(value, bool) or (isinstance(value, str) and not value):
        return value
    if secret or isinstance(value, Secret):
        return MASK
    if isinstance(value, str):
        return scrub_text(value, [*secrets, *assigned_secrets(value)])
    if isinstance(value, int | float) and not is_public_value(text := str(value)):
        return value if scrub_text(text, secrets) == text else MASK
    return value
