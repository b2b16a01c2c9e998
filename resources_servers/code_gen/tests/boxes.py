"""For tests of servers that run code: whether they can here, and a server that is closed at the end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from nemo_gym.environment.verifier_fixture import offline_server
from nemo_gym.sandbox.python import require_isolation
from nemo_gym.sandbox.server import BoxedServer
from nemo_gym.sandbox.spec import SandboxUnsupportedError

Server = TypeVar("Server", bound=BoxedServer)


def problem() -> str | None:
    """Why nothing can be isolated on this machine, if so."""
    try:
        require_isolation({})
    except SandboxUnsupportedError as error:
        return str(error)
    return None


needs_box = pytest.mark.skipif(problem() is not None, reason=str(problem()))


@asynccontextmanager
async def served(cls: type[Server], **settings: Any) -> AsyncIterator[Server]:
    server = offline_server(cls, **settings)
    try:
        yield server
    finally:
        await server.aclose()
