"""The metrics file next to a dataset: compare it with new metrics, and encode it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import orjson

from nemo_gym.data.row_metrics import TOKENS

MetricsState: TypeAlias = Literal["new", "same", "completed", "conflict"]
"""`completed`: the values in the file are equal, and the new metrics have additional ones."""


def compare_metrics(path: Path, metrics: Mapping[str, Any]) -> tuple[MetricsState, list[str], dict[str, Any]]:
    """Compare the file at `path` with new metrics; return state, differences and the new content of the file."""
    content = dict(metrics)
    if not path.exists():
        return "new", [], content
    try:
        existing = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        return "conflict", [f"the file is not JSON: {error}"], content
    if not isinstance(existing, dict):
        return "conflict", ["the file is not a JSON object"], content
    if TOKENS in existing and TOKENS not in content:  # keep the counts of a machine that has the tokenizer
        content[TOKENS] = existing[TOKENS]
    changes = list(differences(existing, content))
    if changes:
        return "conflict", changes, content
    return ("completed" if content.keys() - existing.keys() else "same"), [], content


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Yield every value of `old` that is different or missing in `new`; additions are not differences."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in old.items():
            key_path = f"{path}: {key}" if path else str(key)
            if key not in new:
                yield f"{key_path}: was {_shorten(value)}, is missing"
            else:
                yield from differences(value, new[key], key_path)
    elif not _is_equal(old, new):
        yield f"{path}: was {_shorten(old)}, is {_shorten(new)}"


def encode_metrics(metrics: Mapping[str, Any]) -> bytes:
    """Encode metrics as the content of a metrics file."""
    return orjson.dumps(metrics, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _is_equal(old: Any, new: Any) -> bool:
    """Return whether two values are equal, up to the rounding of numbers and the order of lists."""
    if _is_number(old) and _is_number(new) and (isinstance(old, float) or isinstance(new, float)):
        return bool(old == new or abs(old - new) <= (5e-3 if abs(old) >= 1 else 5e-4))
    if isinstance(old, list) and isinstance(new, list):
        return Counter(map(_encode, old)) == Counter(map(_encode, new))
    return type(old) is type(new) and bool(old == new)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _encode(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _shorten(value: Any) -> str:
    text = _encode(value).decode()
    return text if len(text) <= 80 else f"{text[:79]}…"
