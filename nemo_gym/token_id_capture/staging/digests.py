"""Digests of staged calls, which a framework verifies. The byte layout is part of the wire format."""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_gym.token_id_capture.records import pack_ids

SCHEMA_VERSION = 2
DIGEST_VERSION = 2
EXTRAS_DIGEST_VERSION = 1

_PREFIX_DOMAIN = b"nemo-gym-staging-prefix-v2"
_CHAIN_DOMAIN = b"nemo-gym-staging-chain-v1"
_EXTRAS_DOMAIN = b"nemo-gym-staging-extras-v1"
_CALL_DOMAIN = b"nemo-gym-staging-call-v2"
_HASH_BYTES = 32


def cumulative_hash(token_ids: Sequence[int]) -> str:
    """Return the hash of all tokens up to and including a call."""
    return hashlib.sha256(_PREFIX_DOMAIN + _encode_ids(token_ids)).hexdigest()


def chain_hash(parent_chain_hash: str | None, token_ids_delta: Sequence[int]) -> str:
    """Return the hash of a call's delta and of the chain before it."""
    parent = b"\x00" if parent_chain_hash is None else b"\x01" + _hash_bytes(parent_chain_hash)
    return hashlib.sha256(_CHAIN_DOMAIN + parent + _encode_ids(token_ids_delta)).hexdigest()


def extras_digest(extras: Any) -> str:
    """Return the digest of the extra values of a call, such as routed experts.

    Raises:
        ValueError: a value is none of null, bool, 64-bit integer, float, text, list and object.
    """
    version = struct.pack(">B", EXTRAS_DIGEST_VERSION)
    return hashlib.sha256(_EXTRAS_DOMAIN + version + _encode_value(extras)).hexdigest()


def call_digest(
    *,
    rollout_id: str,
    model_call_id: str,
    parent_call_id: str | None,
    mode: str,
    prev_len: int,
    delta_len: int,
    cum_len: int,
    weight_version: int,
    token_ids_delta: Sequence[int],
    token_mask_delta: Sequence[float],
    generation_log_probs_delta: Sequence[float],
    extras_digest: str,
    chain_hash: str,
    cumulative_hash: str,
) -> str:
    """Return the digest of a staged call."""
    parent = b"\x00" if parent_call_id is None else b"\x01" + _encode_text(parent_call_id)
    parts = [
        struct.pack(">BBB", SCHEMA_VERSION, DIGEST_VERSION, EXTRAS_DIGEST_VERSION),
        _encode_text(rollout_id),
        _encode_text(model_call_id),
        parent,
        _encode_text(mode),
        struct.pack(">QQQQ", prev_len, delta_len, cum_len, weight_version),
        _encode_block(_encode_ids(token_ids_delta)),
        _encode_block(_encode_floats(token_mask_delta)),
        _encode_block(_encode_floats(generation_log_probs_delta)),
        _hash_bytes(extras_digest),
        b"\x01" + _hash_bytes(chain_hash),
        b"\x01" + _hash_bytes(cumulative_hash),
    ]
    return hashlib.sha256(_CALL_DOMAIN + b"".join(parts)).hexdigest()


def _hash_bytes(text: str) -> bytes:
    data = bytes.fromhex(text)
    if len(data) != _HASH_BYTES:
        raise ValueError(f"a hash has {_HASH_BYTES} bytes, not {len(data)}")
    return data


def _encode_ids(token_ids: Sequence[int]) -> bytes:
    return struct.pack(">Q", len(token_ids)) + pack_ids(token_ids)


def _encode_floats(values: Sequence[float]) -> bytes:
    return struct.pack(f">Q{len(values)}f", len(values), *values)


def _encode_block(data: bytes) -> bytes:
    return struct.pack(">Q", len(data)) + data


def _encode_text(text: str) -> bytes:
    return _encode_block(text.encode("utf-8"))


def _encode_value(value: Any) -> bytes:
    """Encode a JSON value with a tag for its type."""
    if value is None:
        return b"N"
    if isinstance(value, bool):
        return b"B" + (b"\x01" if value else b"\x00")
    if isinstance(value, int):
        return b"I" + _pack_integer(value)
    if isinstance(value, float):
        return b"F" + struct.pack(">d", value)
    if isinstance(value, str):
        return b"S" + _encode_text(value)
    if isinstance(value, Mapping):
        pairs = sorted((str(key).encode("utf-8"), item) for key, item in value.items())
        encoded = b"".join(_encode_block(key) + _encode_value(item) for key, item in pairs)
        return b"D" + struct.pack(">Q", len(pairs)) + encoded
    if isinstance(value, Sequence):
        return b"L" + struct.pack(">Q", len(value)) + b"".join(map(_encode_value, value))
    raise ValueError(f"a value of type {type(value).__name__} has no digest")


def _pack_integer(value: int) -> bytes:
    try:
        return struct.pack(">q", value)
    except struct.error:
        raise ValueError(f"{value} does not fit into 64 bits") from None
