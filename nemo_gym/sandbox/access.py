"""Access to a sandbox that another server started: the borrower uses it, its creator stops it."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class DirectSandboxConnection(BaseModel):
    """A sandbox of the provider in a top-level sandbox block; `descriptor` is from `AsyncSandbox.serialize`."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["direct"] = "direct"
    provider_config_ref: str
    descriptor: dict[str, Any]


class SandboxAccess(BaseModel):
    model_config = ConfigDict(extra="forbid")

    connection: DirectSandboxConnection
    workdir: str | None = None
