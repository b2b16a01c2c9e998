"""Recognize the names of secrets: `policy_api_key`, `hf_token`, `auth`, `webhook_url`, and misspelt ones."""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from nemo_gym.keys import SERVER_TYPES

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_OPTION = re.compile(r"--?[A-Za-z][\w\-]*")
_PLAIN_WORD = re.compile(r"[a-z_]+")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ALWAYS_SECRET = _words(
    "password passwords passwd passphrase pwd secret secrets authorization credential credentials bearer cookie "
    "cookies apikey apikeys passcode"
)
"""Words that make a name secret at any position."""

_SECRET_ENDINGS = _words("auth dsn jwt pat psk pw pass passkey salt otp totp webhook webhooks connstr")
"""Words that make a name secret at its end."""

_SECRET_BLOCK_ENDINGS = _ALWAYS_SECRET | _SECRET_ENDINGS | _words("key keys token tokens")
"""Last words with which a secret name makes a whole block secret: `secret_key`, but not `secret_store`."""

_SECRET_PAIRS = _words(
    "webhookurl webhookurls webhookuri hookurl connectionstring connectionstrings connectionstr connectionuri "
    "connectionurl connstring connstr signedurl presignedurl sasurl"
)
"""Last two words, joined, that make a name secret."""

_MISSPELLABLE_WORDS = ("password", "passwd", "passphrase", "secret", "token", "apikey", "credential", "authorization")
_MISSPELLABLE_PAIRS = ("apikey", "password", "connectionstring", "webhookurl")
"""A last word, or the last two words joined, that nearly equals one of these makes a name secret."""
_SIMILARITY = 0.8
_ORDINARY_WORDS = _words("taken tokens tokenize tokenized tokenizer secretary keyword keywords")
"""Words that resemble the name of a secret but are spelled correctly."""

_REFERENCE_ENDINGS = _words(
    "name names file fpath path paths dir env var variable field column length len count type ttl seconds timeout "
    "enabled required header url metrics prefix"
)
"""Last words of names that refer to a secret but are not secret: `api_key_env`, `password_file`."""

_PUBLIC_BEFORE_KEY = _words(
    "agent answer cache category column completion data dict dictionary domain expected field foreign group hash "
    "id image index input item join json label lookup map message messages metadata metric metrics model option "
    "order output partition primary prompt public question reference response result reward row sample score "
    "shard sort source split subset target task text tool type value"
)
"""Words before `key` that make it not secret: `subset_key` is a column name; `api_key` and `key` are secret."""

_PUBLIC_BEFORE_TOKEN = _words(
    "assistant begin bos cls end eos eot first image last mask max min next num pad per prompt sep special start "
    "stop think unk user video audio placeholder trigger"
)
"""Words before `token` that make it not secret: `eos_token` is a text token."""

_SECRET_BEFORE_PLURAL = _words(
    "access api auth bearer encryption hf github gitlab private refresh secret session signing ssh"
)
"""Words before `keys` or `tokens` that make them secret: `api_keys` is, `stop_tokens` and `group_keys` are not."""


_SERVER_BLOCK_KEYS = frozenset({*SERVER_TYPES, "entrypoint", "_inherit_from", "_copy"})
"""A block with one of these keys describes a server, or becomes one when its directives are applied."""


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return whether a value under this name must be masked."""
    words = [word.lower() for word in _WORD.findall(name)]
    while len(words) > 1 and words[-1].isdigit():  # `api_key_2`
        words.pop()
    if not words:
        return False
    previous = words[-2] if len(words) > 1 else ""
    if previous + words[-1] in _SECRET_PAIRS:
        return True
    if words[-1] in _REFERENCE_ENDINGS:
        return _is_nearly(previous + words[-1], ("webhookurl",))  # `webhok_url`
    if not _ALWAYS_SECRET.isdisjoint(words) or words[-1] in _SECRET_ENDINGS:
        return True
    if words[-1] == "key":
        return previous not in _PUBLIC_BEFORE_KEY
    if words[-1] == "token":
        return previous not in _PUBLIC_BEFORE_TOKEN
    if words[-1] in {"keys", "tokens"}:
        return previous in _SECRET_BEFORE_PLURAL
    return _has_misspelled_ending(previous, words[-1])


def _has_misspelled_ending(previous: str, last: str) -> bool:
    """Return whether a name ends in a misspelled secret word: `pasword`, `acces_tokne`, `api_kye`."""
    if _is_nearly(last, _MISSPELLABLE_WORDS) or (previous and _is_nearly(previous + last, _MISSPELLABLE_PAIRS)):
        return previous not in _PUBLIC_BEFORE_TOKEN
    is_almost_key = last[0] == "k" and len(last) <= len("keyy")
    return is_almost_key and previous in _SECRET_BEFORE_PLURAL


def _is_nearly(word: str, secret_words: tuple[str, ...]) -> bool:
    """Return whether a word equals one of the secret words, or could be a misspelling of it."""
    is_candidate = 3 < len(word) < 30 and word not in _ORDINARY_WORDS
    return is_candidate and bool(get_close_matches(word, secret_words, n=1, cutoff=_SIMILARITY))


def has_secret_name(path: Iterable[str | int]) -> bool:
    """Return whether a key in the path makes the value at its end secret; names of server instances do not count."""
    parts = list(path)
    if len(parts) > 2 and parts[1] in SERVER_TYPES:
        parts = parts[3:]  # without instance name, server type and implementation
    return any(is_secret_name(part) for part in parts if isinstance(part, str))


def is_secret_block(name: str, block: Any) -> bool:
    """Return whether every text in the mapping `block` is secret because of its name: `api_keys: {openai: …}`.

    The name of a server instance or of its implementation says nothing about its fields. In a block that is called
    `api_key_settings` or `secret_store`, the names in the block decide.
    """
    if not _SERVER_BLOCK_KEYS.isdisjoint(block) or not is_secret_name(name):
        return False
    words = [word.lower() for word in _WORD.findall(name) if not word.isdigit()]
    return words[-1] in _SECRET_BLOCK_ENDINGS or _ALWAYS_SECRET.isdisjoint(words)


def is_secret_value_key(key: str, block: Mapping[Any, Any]) -> bool:
    """Return whether `key` holds the value of a secret that another field names: `{name: API_KEY, value: …}`."""
    names = (block.get(field) for field in ("name", "key", "header"))
    return key == "value" and any(isinstance(name, str) and is_secret_name(name) for name in names)


def is_secret_item(items: Sequence[Any], index: int) -> bool:
    """Return whether the item before an item names it as secret: `["X-Api-Key", …]`, `[…, "--password", …]`.

    A pair of plain words is a list of names, such as columns.
    """
    previous, item = items[index - 1] if index else None, items[index]
    if not isinstance(previous, str) or not is_secret_name(previous) or not isinstance(item, str | int | float):
        return False
    is_option = _OPTION.fullmatch(previous) is not None
    return is_option or (len(items) == 2 and " " not in previous and not _PLAIN_WORD.fullmatch(str(item)))
