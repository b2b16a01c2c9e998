"""What must not be shown: which names mean a secret, and how a value is hidden.

A value is secret because its field is declared `Secret`, because of its name (`policy_api_key`, `hf_token`,
`password`) or because it is the user part of a URL. Numbers and booleans never are, so `max_output_tokens: 4096`
stays readable. Hiding is for showing only: clients keep getting the real string.
"""

import re
from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

MASK = "****"

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ALWAYS = _words(
    "password passwords passwd passphrase pwd secret secrets authorization credential credentials bearer cookie "
    "cookies apikey apikeys"
)
"""Words that make a name secret wherever they stand."""

_REFERENCE_ENDINGS = _words(
    "name names file fpath path paths dir env var variable field column length len count type ttl seconds timeout "
    "enabled required header url metrics prefix"
)
"""`api_key_env` and `password_file` say where a secret is; they are not one."""

_PLAIN_KEYS = _words(
    "agent answer cache category column completion data dict dictionary domain expected field foreign group hash "
    "id image index input item join json label lookup map message messages metadata metric metrics model option "
    "order output partition primary prompt public question reference response result reward row sample score "
    "shard sort source split subset target task text tool type value"
)
"""`subset_key` names a column. What opens something (`api_key`, `access_key`, `key`) is secret."""

_PLAIN_TOKENS = _words(
    "assistant begin bos cls end eos eot first image last mask max min next num pad per prompt sep special start "
    "stop think unk user video audio placeholder trigger"
)
"""`eos_token` is a piece of text."""

_OPENS = _words("access api auth bearer encryption hf github gitlab private refresh secret session signing ssh")
"""In the plural only these are secret: `api_keys` is, `stop_tokens` and `group_keys` are not."""

_URL_USER = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.\-]{0,30}://)[^\s/?#\"'<>]*@")
_URL_QUERY = re.compile(
    r"(?i)(?P<name>[?&](?:[a-z0-9]+[_-])*(?:key|apikey|token|password|secret|sig|signature)=)[^&\s#\"']+"
)
_AUTH_SCHEME = re.compile(r"(?i)\b(?P<scheme>bearer|basic)\s+(?=[A-Za-z0-9._~+/\-]*[0-9])[A-Za-z0-9._~+/\-]{8,}=*")
_SHORTEST_SCRUBBED = 6
"""Known secrets shorter than this are not searched for in other text: `x` is in everything."""


class Secret(str):
    """Text that does its work but does not show itself: `repr` is masked, everything else is the real string."""

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
    """Whether a value under this name is to be hidden."""
    words = [word.lower() for word in _WORD.findall(name)]
    while len(words) > 1 and words[-1].isdigit():
        words.pop()
    if not words or words[-1] in _REFERENCE_ENDINGS:
        return False
    if not _ALWAYS.isdisjoint(words):
        return True
    before = words[-2] if len(words) > 1 else ""
    if words[-1] == "key":
        return before not in _PLAIN_KEYS
    if words[-1] == "token":
        return before not in _PLAIN_TOKENS
    return words[-1] in {"keys", "tokens"} and before in _OPENS


def mask_text(text: str) -> str:
    """`text` without user parts of URLs, secret query parameters and Authorization values."""
    if "://" in text:
        text = _URL_QUERY.sub(rf"\g<name>{MASK}", _URL_USER.sub(rf"\g<scheme>{MASK}@", text))
    return _AUTH_SCHEME.sub(rf"\g<scheme> {MASK}", text)


def redact_text(text: str, config: Any) -> str:
    """`text` with every secret value that `config` knows replaced by the mask."""
    return scrubbed(text, secret_values(config))


def secret_values(config: Any) -> list[str]:
    """The secret strings inside `config`, longest first, so that one secret inside another leaves no rest."""
    found = {value for value in _find_secrets(config, hidden=False) if len(value) >= _SHORTEST_SCRUBBED}
    return sorted(found, key=len, reverse=True)


def mask_secrets(container: Any) -> Any:
    """A copy of plain or OmegaConf data in which no secret can be read."""
    known = secret_values(container)
    if isinstance(container, DictConfig | ListConfig):
        return OmegaConf.create(_masked(OmegaConf.to_container(container, resolve=False), known, hidden=False))
    return _masked(container, known, hidden=False)


def hide_in_place(container: Any) -> None:
    """Overwrite every secret inside a mutable container. Interpolations of secrets are overwritten as well."""
    if isinstance(container, DictConfig | ListConfig) and (container._is_none() or container._is_missing()):
        return
    _hide(container, secret_values(container), hidden=False)


class Shown:
    """Something whose `repr` is that of `value` with every secret masked, nested models included."""

    def __init__(self, value: Any, *, hidden: bool = False) -> None:
        self.value = value
        self.hidden = hidden

    def __repr__(self) -> str:
        value = self.value
        if isinstance(value, BaseModel):
            parts = (f"{k}={Shown(v, hidden=is_secret_name(k))!r}" for k, v in iter_fields(value))
            return f"{type(value).__name__}({', '.join(parts)})"
        if isinstance(value, Mapping):
            return repr({k: Shown(v, hidden=is_secret_name(str(k))) for k, v in _entries(value)})
        if isinstance(value, list | tuple | ListConfig):
            items = [Shown(item, hidden=self.hidden) for item in value]
            return repr(tuple(items) if isinstance(value, tuple) else items)
        if isinstance(value, str) and value:
            return repr(MASK if self.hidden or isinstance(value, Secret) else mask_text(value))
        return repr(value)


def iter_fields(model: BaseModel) -> Iterator[tuple[str, Any]]:
    """Name and value of each field, extras included, without asking for the model's own `repr`."""
    yield from model.__dict__.items()
    yield from (model.__pydantic_extra__ or {}).items()


def _entries(mapping: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    if isinstance(mapping, DictConfig):
        yield from mapping.items_ex(resolve=False)
    else:
        yield from mapping.items()


def _holds_secrets(name: str) -> bool:
    """Whether everything inside a block of this name is secret (`credentials: {user: …, value: …}`)."""
    words = _WORD.findall(name)
    return bool(words) and words[-1].lower() in _ALWAYS


def scrubbed(text: str, known: list[str]) -> str:
    """`text` without the `known` secrets and without credentials in URLs."""
    for value in known:
        text = text.replace(value, MASK)
    return mask_text(text)


def _find_secrets(node: Any, *, hidden: bool) -> Iterator[str]:
    if isinstance(node, BaseModel):
        node = dict(iter_fields(node))
    if isinstance(node, Secret) or (hidden and isinstance(node, str)):
        if node and "${" not in node and node not in (MASK, "???"):
            yield str(node)
    elif isinstance(node, Mapping):
        for key, value in _resolved_entries(node):
            name = str(key)
            nested = isinstance(value, Mapping)
            yield from _find_secrets(value, hidden=_holds_secrets(name) if nested else is_secret_name(name) or hidden)
    elif isinstance(node, list | tuple | ListConfig):
        for item in node._iter_ex(resolve=False) if isinstance(node, ListConfig) else node:
            yield from _find_secrets(item, hidden=hidden)


def _resolved_entries(mapping: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    if not isinstance(mapping, DictConfig):
        yield from mapping.items()
        return
    if mapping._is_none() or mapping._is_missing() or mapping._is_interpolation():
        return
    for key, raw in mapping.items_ex(resolve=False):
        if isinstance(raw, str) and "${" in raw and is_secret_name(str(key)):
            try:
                yield key, mapping[key]
            except (OmegaConfBaseException, RecursionError, ValueError, TypeError, OSError):
                continue
        else:
            yield key, raw


def _masked(node: Any, known: list[str], *, hidden: bool) -> Any:
    if isinstance(node, BaseModel):
        node = dict(iter_fields(node))
    if isinstance(node, Mapping):
        return {key: _masked(value, known, hidden=_hidden_below(key, value, hidden)) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_masked(item, known, hidden=hidden) for item in node]
    if isinstance(node, str) and node:
        return MASK if hidden or isinstance(node, Secret) else scrubbed(node, known)
    return node


def _hide(node: Any, known: list[str], *, hidden: bool) -> None:
    if isinstance(node, MutableMapping):
        entries = [(key, value, _hidden_below(key, value, hidden)) for key, value in _entries(node)]
    elif isinstance(node, MutableSequence):
        items = node._iter_ex(resolve=False) if isinstance(node, ListConfig) else node
        entries = [(index, value, hidden) for index, value in enumerate(items)]
    else:
        return
    for key, value, below in entries:
        if isinstance(value, str):
            text = value if value == "???" else (MASK if below and value else scrubbed(value, known))
            if text != value:
                node[key] = text
        elif isinstance(value, DictConfig | ListConfig) and (value._is_none() or value._is_missing()):
            continue
        elif isinstance(value, DictConfig | ListConfig) and value._is_interpolation():
            if below:
                node[key] = MASK
        else:
            _hide(value, known, hidden=below)


def _hidden_below(key: Any, value: Any, hidden: bool) -> bool:
    if isinstance(value, Mapping):
        return hidden or _holds_secrets(str(key))
    return hidden or is_secret_name(str(key))
