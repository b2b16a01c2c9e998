"""Secret masking: recognize secrets by name, and mask them in texts, trees and `repr`.

A value is secret because its field is declared `Secret`, because of its name (`policy_api_key`, `hf_token`,
`password`) or because it is the user part of a URL. Numbers and booleans are never secret: `max_output_tokens: 4096`
is shown. Masking is for display only: clients get the real string.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from nemo_gym.config import omegaconf_adapter as omega

MASK = "****"

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ALWAYS_SECRET = _words(
    "password passwords passwd passphrase pwd secret secrets authorization credential credentials bearer cookie "
    "cookies apikey apikeys"
)
"""Words that make a name secret at any position."""

_REFERENCE_ENDINGS = _words(
    "name names file fpath path paths dir env var variable field column length len count type ttl seconds timeout "
    "enabled required header url metrics prefix"
)
"""Last words of names that refer to a secret but are not secret: `api_key_env`, `password_file`."""

_PUBLIC_KEYS = _words(
    "agent answer cache category column completion data dict dictionary domain expected field foreign group hash "
    "id image index input item join json label lookup map message messages metadata metric metrics model option "
    "order output partition primary prompt public question reference response result reward row sample score "
    "shard sort source split subset target task text tool type value"
)
"""Words before `key` that make it not secret: `subset_key` is a column name; `api_key` and `key` are secret."""

_PUBLIC_TOKENS = _words(
    "assistant begin bos cls end eos eot first image last mask max min next num pad per prompt sep special start "
    "stop think unk user video audio placeholder trigger"
)
"""Words before `token` that make it not secret: `eos_token` is a text token."""

_SECRET_PLURALS = _words(
    "access api auth bearer encryption hf github gitlab private refresh secret session signing ssh"
)
"""Words before `keys` or `tokens` that make them secret: `api_keys` is, `stop_tokens` and `group_keys` are not."""

_URL_USER = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.\-]{0,30}://)[^\s/?#\"'<>]*@")
_URL_QUERY = re.compile(
    r"(?i)(?P<name>[?&](?:[a-z0-9]+[_-])*(?:key|apikey|token|password|secret|sig|signature)=)[^&\s#\"']+"
)
_AUTH_SCHEME = re.compile(r"(?i)\b(?P<scheme>bearer|basic)\s+(?=[A-Za-z0-9._~+/\-]*[0-9])[A-Za-z0-9._~+/\-]{8,}=*")
_SHORTEST_SCRUBBED = 6
"""Shorter secrets are not replaced in other texts, because they would match ordinary text."""


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


def is_secret_name(name: str) -> bool:
    """Return whether a value under this name must be masked."""
    words = [word.lower() for word in _WORD.findall(name)]
    while len(words) > 1 and words[-1].isdigit():
        words.pop()
    if not words or words[-1] in _REFERENCE_ENDINGS:
        return False
    if not _ALWAYS_SECRET.isdisjoint(words):
        return True
    previous = words[-2] if len(words) > 1 else ""
    if words[-1] == "key":
        return previous not in _PUBLIC_KEYS
    if words[-1] == "token":
        return previous not in _PUBLIC_TOKENS
    return words[-1] in {"keys", "tokens"} and previous in _SECRET_PLURALS


def has_secret_name(path: Iterable[str | int]) -> bool:
    """Return whether a key of the path makes the value at its end secret."""
    return any(is_secret_name(part) for part in path if isinstance(part, str))


def mask_text(text: str) -> str:
    """Mask user parts of URLs, secret query parameters and Authorization values in `text`."""
    if "://" in text:
        text = _URL_QUERY.sub(rf"\g<name>{MASK}", _URL_USER.sub(rf"\g<scheme>{MASK}@", text))
    return _AUTH_SCHEME.sub(rf"\g<scheme> {MASK}", text)


def scrub_text(text: str, secrets: list[str]) -> str:
    """Mask the given `secrets` and credentials in URLs in `text`."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return mask_text(text)


def redact_text(text: str, config: Any) -> str:
    """Mask every secret value of `config` in `text`."""
    return scrub_text(text, secret_values(config))


def secret_values(config: Any) -> list[str]:
    """Return the secret strings in `config`, longest first, so that one that contains another is masked whole."""
    secrets = {value for value in _iter_secrets(config, secret=False) if len(value) >= _SHORTEST_SCRUBBED}
    return sorted(secrets, key=len, reverse=True)


def mask_secrets(container: Any) -> Any:
    """Return a masked copy of plain or OmegaConf data."""
    secrets = secret_values(container)
    if OmegaConf.is_config(container):
        tree = omega.as_plain_value(container, resolve=False)
        return OmegaConf.create(_mask_copy(tree, secrets, secret=False))
    return _mask_copy(container, secrets, secret=False)


def mask_in_place(container: Any) -> None:
    """Overwrite every secret in a mutable container, including interpolations of secrets."""
    if not omega.is_empty_node(container):
        plain = omega.as_plain_value(container, resolve=False)
        _overwrite(container, _mask_copy(plain, secret_values(container), secret=False))


def _overwrite(node: Any, masked: Any) -> None:
    """Replace every text in `node` that differs in its masked copy; nested containers stay the same objects."""
    for key, value in list(omega.unresolved_items(node)):
        if omega.is_interpolation_node(value) or isinstance(value, str):
            if value != masked[key] and value != "???":
                node[key] = masked[key]
        elif isinstance(value, dict | list | DictConfig | ListConfig) and not omega.is_empty_node(value):
            _overwrite(value, masked[key])


class MaskedRepr:
    """An object whose `repr` is that of `value` with every secret masked, nested models included."""

    def __init__(self, value: Any, *, secret: bool = False) -> None:
        self.value = value
        self.secret = secret

    def __repr__(self) -> str:
        value = self.value
        if isinstance(value, BaseModel):
            parts = (f"{k}={MaskedRepr(v, secret=is_secret_name(k))!r}" for k, v in iter_fields(value))
            return f"{type(value).__name__}({', '.join(parts)})"
        value = omega.as_plain_value(value, resolve=False)
        if isinstance(value, Mapping):
            return repr({k: MaskedRepr(v, secret=is_secret_name(str(k))) for k, v in value.items()})
        if isinstance(value, list | tuple):
            items = [MaskedRepr(item, secret=self.secret) for item in value]
            return repr(tuple(items) if isinstance(value, tuple) else items)
        if isinstance(value, str) and value:
            return repr(MASK if self.secret or isinstance(value, Secret) else mask_text(value))
        return repr(value)


def iter_fields(model: BaseModel) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each field, extras included, without calling the model's `repr`."""
    yield from model.__dict__.items()
    yield from (model.model_extra or {}).items()


def _is_secret_child(key: Any, value: Any, secret: bool) -> bool:
    """Return whether the value under `key` is secret; `secret` is True if its container is secret.

    All values of a block called `credentials` are secret; in a block called `api_key_settings`, names decide.
    """
    words = _WORD.findall(str(key))
    if isinstance(value, Mapping):
        return secret or (bool(words) and words[-1].lower() in _ALWAYS_SECRET)
    return secret or is_secret_name(str(key))


def _iter_secrets(node: Any, *, secret: bool) -> Iterator[str]:
    """Yield every secret string in plain, OmegaConf or pydantic data; with `secret`, all strings are secret."""
    node = dict(iter_fields(node)) if isinstance(node, BaseModel) else omega.resolve_leaves(node)
    if isinstance(node, Secret) or (secret and isinstance(node, str)):
        if node and "${" not in node and node not in (MASK, "???"):
            yield str(node)
    elif isinstance(node, Mapping):
        for key, value in node.items():
            is_block = isinstance(value, Mapping)
            yield from _iter_secrets(value, secret=_is_secret_child(key, value, secret and not is_block))
    elif isinstance(node, list | tuple):
        for item in node:
            yield from _iter_secrets(item, secret=secret)


def _mask_copy(node: Any, secrets: list[str], *, secret: bool) -> Any:
    """Return a copy of plain data with secrets masked; with `secret`, all strings are secret."""
    if isinstance(node, BaseModel):
        node = dict(iter_fields(node))
    if isinstance(node, Mapping):
        return {k: _mask_copy(v, secrets, secret=_is_secret_child(k, v, secret)) for k, v in node.items()}
    if isinstance(node, list | tuple):
        return [_mask_copy(item, secrets, secret=secret) for item in node]
    if isinstance(node, str) and node:
        return MASK if secret or isinstance(node, Secret) else scrub_text(node, secrets)
    return node
