"""Which rollout this is: the task, its repeat, and the attempt at it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nemo_gym.keys import ATTEMPT_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME

_TEXT = re.compile(r"(\d+)-(\d+)(?:-a([1-9]\d*))?", re.ASCII)


@dataclass(frozen=True, order=True, slots=True)
class RolloutKey:
    """One attempt at one repeat of one task. `attempt` is 0 unless earlier ones failed."""

    task: int
    rollout: int
    attempt: int = 0

    def __post_init__(self) -> None:
        if self.task < 0 or self.rollout < 0 or self.attempt < 0:
            raise ValueError(f"task, rollout and attempt count from 0: {self.task}, {self.rollout}, {self.attempt}")

    def __str__(self) -> str:
        """`<task>-<rollout>`, with `-a<attempt>` when it is not the first: the URL prefix and the capture file."""
        again = f"-a{self.attempt}" if self.attempt else ""
        return f"{self.task}-{self.rollout}{again}"

    @property
    def place(self) -> tuple[int, int]:
        """What resume goes by: every attempt at one repeat has the same place."""
        return self.task, self.rollout

    @classmethod
    def parse(cls, text: str) -> "RolloutKey":
        """The key whose text form is `text`.

        Raises:
            ValueError: `text` is not the text form of a key.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not of the form <task>-<rollout> or <task>-<rollout>-a<attempt>")
        task, rollout, attempt = found.groups(default="0")
        return cls(int(task), int(rollout), int(attempt))

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "RolloutKey":
        """The key stamped on a row.

        Raises:
            ValueError: an index is missing or is not a whole number from 0.
        """
        return cls(
            _index(row, TASK_INDEX_KEY_NAME),
            _index(row, ROLLOUT_INDEX_KEY_NAME),
            _index(row, ATTEMPT_INDEX_KEY_NAME) if row.get(ATTEMPT_INDEX_KEY_NAME) is not None else 0,
        )

    def stamp(self) -> dict[str, int]:
        """The fields that carry this key on a row; the first attempt is not written."""
        stamped = {TASK_INDEX_KEY_NAME: self.task, ROLLOUT_INDEX_KEY_NAME: self.rollout}
        if self.attempt:
            stamped[ATTEMPT_INDEX_KEY_NAME] = self.attempt
        return stamped


def _index(row: Mapping[str, Any], name: str) -> int:
    value = row.get(name)
    if type(value) is int and value >= 0:  # as good as always
        return value
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} must be a whole number from 0, not {value!r}")
    return value
