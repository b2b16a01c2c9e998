"""The metrics file beside a dataset, and whether it still says what the rows say."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import orjson

from nemo_gym.data.measure import TOKENS

State: TypeAlias = Literal["new", "same", "completed", "conflict"]
"""`completed`: what the file says is right, but there is more to say."""


def compared(path: Path, metrics: Mapping[str, Any]) -> tuple[State, list[str], dict[str, Any]]:
    """How the file at `path` compares with new metrics, every difference, and what the file should hold."""
    wanted = dict(metrics)
    if not path.exists():
        return "new", [], wanted
    try:
        existing = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        return "conflict", [f"the file is not JSON: {error}"], wanted
    if not isinstance(existing, dict):
        return "conflict", ["the file is not a JSON object"], wanted
    if TOKENS in existing and TOKENS not in wanted:  # counted where the tokenizer is installed
        wanted[TOKENS] = existing[TOKENS]
    found = list(differences(existing, wanted))
    if found:
        return "conflict", found, wanted
    return ("completed" if wanted.keys() - existing.keys() else "same"), [], wanted


def differences(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """Everything in `old` that `new` says differently. What only `new` has is no difference."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in old.items():
            inner = f"{place}: {key}" if place else str(key)
            if key not in new:
                yield f"{inner}: was {_shown(value)}, is gone"
            else:
                yield from differences(value, new[key], inner)
    elif not _equal(old, new):
        yield f"{place}: was {_shown(old)}, is {_shown(new)}"


def _equal(old: Any, new: Any) -> bool:
    if _is_number(old) and _is_number(new) and (isinstance(old, float) or isinstance(new, float)):
        return bool(old == new or abs(old - new) <= (5e-3 if abs(old) >= 1 else 5e-4))
    if isinstance(old, list) and isinstance(new, list):
        return Counter(map(_text, old)) == Counter(map(_text, new))
    return type(old) is type(new) and bool(old == new)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _shown(value: Any) -> str:
    text = _text(value).decode()
    return text if len(text) <= 80 else f"{text[:79]}…"


def metrics_text(metrics: Mapping[str, Any]) -> bytes:
    return orjson.dumps(metrics, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
