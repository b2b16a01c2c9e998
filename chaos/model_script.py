"""Answer for the scripted model of a disturbed run: right for some rollouts, wrong for others, constant for each."""

import hashlib
from typing import Any

MAX_DELAY_SECONDS = 0.15


def answer(scene: Any) -> dict[str, Any]:
    """Return the turn for a conversation, determined by its question and its seed alone."""
    question = scene.conversation[-1]["content"]
    digest = hashlib.sha256(f"{question} {scene.seed}".encode()).digest()
    left, right = (int(word) for word in question.split() if word.isdecimal())
    error = digest[0] % 3 == 0
    return {"text": f"It is {left + right + error}.", "delay_seconds": MAX_DELAY_SECONDS * digest[1] / 255}
