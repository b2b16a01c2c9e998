"""A uvicorn server that reports readiness to its launcher."""

import os
import socket
from collections.abc import Mapping
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from nemo_gym.serve.blocked_loop import LoopWatch
from nemo_gym.serve.server_loop import ignore_cancellation, run_server_loop
from nemo_gym.serve.webserver import READY_FD_ENV_VAR, report_ready


class ReportingServer(uvicorn.Server):
    """Serves an app, reports readiness through a pipe and monitors the event loop. `options` are those of uvicorn."""

    def __init__(self, app: ASGIApp, options: Mapping[str, Any]) -> None:
        super().__init__(uvicorn.Config(app, **options))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the server; then monitor the loop and report readiness on the descriptor of `READY_FD_ENV_VAR`."""
        await super().startup(sockets=sockets)
        self._watch = LoopWatch()
        fd = os.environ.pop(READY_FD_ENV_VAR, None)
        if self.started:
            self._watch.start()
        if fd and self.started:
            report_ready(int(fd))

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        run_server_loop(self.serve(sockets=sockets), self.config.get_loop_factory())

    async def main_loop(self) -> None:
        await ignore_cancellation(super().main_loop)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._watch.close()
        await super().shutdown(sockets=sockets)
