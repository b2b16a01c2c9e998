"""What a rollout used, as its record tells."""

from collections.abc import Mapping
from typing import Any

from nemo_gym.keys import RESPONSE_KEY_NAME

_MOST = 2**63 - 1


def total_tokens(record: Mapping[str, Any]) -> int:
    """Tokens of all model calls of a rollout, in and out; 0 when the record does not say."""
    response = record.get(RESPONSE_KEY_NAME)
    usage = response.get("usage") if isinstance(response, dict) else None
    if not isinstance(usage, dict):
        return 0
    total = usage.get("total_tokens")
    if total is None:
        total = sum(_count(usage.get(name)) for name in ("input_tokens", "output_tokens"))
    return total if type(total) is int and 0 <= total <= _MOST else _count(total)


def _count(value: Any) -> int:
    return min(max(0, value), _MOST) if isinstance(value, int) and not isinstance(value, bool) else 0
