"""The answer of the model to the current call, before it is converted to the dialect of the client."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pydantic import BaseModel


class ModelAnswer:
    """Holds the answer of the model until the record of the call is written."""

    def __init__(self) -> None:
        self._answer: Any = None

    def put(self, answer: Any) -> None:
        """Keep the answer; nothing is copied."""
        self._answer = answer

    def as_json(self) -> dict[str, Any] | None:
        """Return the answer as a Responses or Chat object; None if the model has given none."""
        if isinstance(self._answer, BaseModel):
            return self._answer.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return dict(self._answer) if isinstance(self._answer, Mapping) else None


_current: ContextVar[ModelAnswer | None] = ContextVar("nemo_gym_model_answer", default=None)


@contextmanager
def collecting_model_answer() -> Iterator[ModelAnswer]:
    """Collect the answer of the model to the call that is served in this block."""
    collected = ModelAnswer()
    token = _current.set(collected)
    try:
        yield collected
    finally:
        _current.reset(token)


def keep_model_answer(answer: Any) -> Any:
    """Return the answer of the model, and keep it for the record of the current call if that is captured."""
    collected = _current.get()
    if collected is not None:
        collected.put(answer)
    return answer
