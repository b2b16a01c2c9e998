"""Lines that other tools wrote as Python writes JSON: with NaN and Infinity, which are no JSON."""

import json
import math
from typing import Any

from nemo_gym.keys import NG_FAILURE_CLASS_KEY, NG_FAILURE_DETAIL_KEY
from nemo_gym.rollouts.job import Row
from nemo_gym.rollouts.outcome import REWARD_KEY, FailureKind, Phase

_WORDS = (b"NaN", b"Infinity")


def foreign_row(line: bytes) -> Row | None:
    """The row of a line that is JSON but for such numbers, which become null; None when it is not.

    A reward that is one makes the row a failure, as it would have been here: it never was a score.
    """
    if not any(word in line for word in _WORDS):
        return None
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict):
        return None
    reward = row.get(REWARD_KEY)
    row = {name: _finite(value) for name, value in row.items()}
    if isinstance(reward, float) and not math.isfinite(reward) and row.get(NG_FAILURE_CLASS_KEY) is None:
        del row[REWARD_KEY]
        message = f"the reward is {reward}, which is not finite"
        detail = {"kind": FailureKind.INVALID_REWARD, "phase": Phase.VERIFY, "retryable": False, "message": message}
        row |= {NG_FAILURE_CLASS_KEY: FailureKind.INVALID_REWARD, NG_FAILURE_DETAIL_KEY: detail}
    return row


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, list) else value
