"""A uvicorn server that tells its launcher when it accepts connections."""

import os
import socket
from collections.abc import Mapping
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from nemo_gym.serve.run import READY_FD_ENV_VAR, tell_ready


class AnnouncedServer(uvicorn.Server):
    """Serves one app; `options` are uvicorn's."""

    def __init__(self, app: ASGIApp, options: Mapping[str, Any]) -> None:
        super().__init__(uvicorn.Config(app, **options))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        fd = os.environ.pop(READY_FD_ENV_VAR, None)
        if fd and self.started:
            tell_ready(int(fd))
