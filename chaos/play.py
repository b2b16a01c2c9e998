"""What the model of a disturbed run says: right for some rollouts and wrong for others, always the same for each."""

import hashlib
from typing import Any

SLOWEST_SECONDS = 0.15


def answer(scene: Any) -> dict[str, Any]:
    """The turn for a conversation: decided by its question and its seed, and by nothing else."""
    question = scene.conversation[-1]["content"]
    digest = hashlib.sha256(f"{question} {scene.seed}".encode()).digest()
    left, right = (int(word) for word in question.split() if word.isdecimal())
    wrong = digest[0] % 3 == 0
    return {"text": f"It is {left + right + wrong}.", "delay_seconds": SLOWEST_SECONDS * digest[1] / 255}
