"""What the two ends of an in-memory call give each other without writing it as JSON first.

Both sides validated these models already. Whoever asks for bytes still gets them, written then.
"""

from typing import Any

from pydantic import BaseModel

LOCAL_CALL = "nemo_gym.local"
"""In the scope of a call made in memory: its `Handed`. Whoever made the call watches the clock."""


class Handed:
    """The request as a model, if it was sent as one, and the answer as a model, if the handler gave one."""

    __slots__ = ("answer", "is_welcome", "request")

    def __init__(self, request: BaseModel | None, *, is_welcome: bool) -> None:
        self.request = request if is_welcome else None
        self.is_welcome = is_welcome
        """Whether the app has no layer that would read the bytes of a body."""
        self.answer: BaseModel | None = None


def handed_request(scope: Any) -> BaseModel | None:
    """The model that an in-memory caller sent, or None."""
    handed = scope.get(LOCAL_CALL)
    return handed.request if handed is not None else None


def hand_answer(scope: Any, answer: BaseModel) -> bool:
    """Give an in-memory caller the model itself; False if it wants bytes."""
    handed = scope.get(LOCAL_CALL)
    if handed is None or not handed.is_welcome:
        return False
    handed.answer = answer
    return True
