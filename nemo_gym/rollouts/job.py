"""One request to an agent: the row it is sent, and which rollout that is."""

from dataclasses import dataclass, replace
from typing import Any

from nemo_gym.keys import (
    AGENT_REF_KEY_NAME,
    ATTEMPT_INDEX_KEY_NAME,
    ROLLOUT_ID_KEY_NAME,
    SKILLS_REF_KEY_NAME,
)
from nemo_gym.rollouts.key import RolloutKey

Row = dict[str, Any]

_CARRIED = (AGENT_REF_KEY_NAME, SKILLS_REF_KEY_NAME, ATTEMPT_INDEX_KEY_NAME, ROLLOUT_ID_KEY_NAME)


@dataclass(frozen=True, slots=True)
class Job:
    """A row ready to be sent to `/run`; its key is stamped on it."""

    key: RolloutKey
    row: Row

    @classmethod
    def of(cls, row: Row) -> "Job":
        """The job a stamped row stands for.

        Raises:
            ValueError: the row is not stamped.
        """
        return cls(RolloutKey.of(row), row)

    @property
    def agent(self) -> str:
        """The agent instance that runs it."""
        return str(self.row[AGENT_REF_KEY_NAME]["name"])

    def again(self, attempt: int) -> "Job":
        """The same rollout, tried once more after `attempt` failures."""
        if not attempt:
            return self
        key = replace(self.key, attempt=attempt)
        return Job(key, {**self.row, **key.stamp()})

    def stamped(self, record: Row) -> Row:
        """`record` with what ties it to its row: the key, the agent and, where the row has them, skills and ids."""
        carried = {name: self.row[name] for name in _CARRIED if self.row.get(name) is not None}
        return {**record, **self.key.stamp(), **carried}
