"""The protocols of stores: a sink takes records at model servers, a source gives them to the collector.

`put` returns when the record survives the end of the process and every worker's resolver sees it. The same record again
is a no-op, another one with the same call id an error. A write that races with `freeze` may succeed, but changes the
version.
"""

from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from nemo_gym.token_id_capture.records import TokenEntry


class TokenCaptureSnapshot(BaseModel):
    """The records of one rollout at one time."""

    model_config = ConfigDict(extra="allow")

    rollout_id: str
    entries: list[TokenEntry] = Field(default_factory=list)
    incomplete: bool = False
    """A call of the rollout is missing."""
    snapshot_id: str = ""
    version: int = 0
    """Changes with every write."""
    reasons: list[str] = Field(default_factory=list)
    """Why the rollout is incomplete, as far as the store knows."""


@runtime_checkable
class TokenSink(Protocol):
    """Stores the records of model calls. `begin_call(rollout_id, model_call_id)` is optional."""

    async def put(self, entry: TokenEntry) -> Any: ...

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        """Record that a call is missing; must work after `freeze` and change the version."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class TokenSource(Protocol):
    """Reads the records of rollouts that have ended."""

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        """Return the records; the same snapshot again if nothing was written in between."""
        ...

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        """Delete the records of a snapshot; False, and nothing is deleted, if the state has changed since."""
        ...

    async def close(self) -> None: ...
