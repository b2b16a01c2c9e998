"""A vLLM server as a child process: its command line, its start, its log and its end."""

import asyncio
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from nemo_gym.errors import ConfigError, GymError
from nemo_gym.processes import exit_with_parent, signal_group

logger = logging.getLogger("nemo_gym.local_vllm_model")

POLL_SECONDS, PROBE_SECONDS, STOP_SECONDS = 0.5, 5.0, 15.0
LOG_LINES = 30
LINE_BYTES = 1 << 20
"""Maximum length of a line of the engine's log."""
SHOWN_CHARACTERS = 1000
"""Characters of a line that are kept; progress bars write one long line."""


class EngineFailed(GymError):
    """The engine did not start, or it ended."""

    exit_status = 3


def command_line(
    command: Sequence[str], model: str, port: int, options: Mapping[str, Any], served_name: str | None = None
) -> list[str]:
    """Return the command that serves a model; `options` are flags by name, as vLLM's Python API writes them."""
    words = [*command, model, "--host", "127.0.0.1", "--port", str(port)]
    if served_name is not None:
        words += ["--served-model-name", served_name]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is False:
            words.append("--no-" + flag.removeprefix("--"))
        elif isinstance(value, Mapping):
            words += [flag, json.dumps(dict(value))]
        elif isinstance(value, (list, tuple)):
            words += [flag, *map(str, value)]
        elif value is not None:
            words += [flag, str(value)]
    return words


def reserved_port() -> socket.socket:
    """Return a socket that reserves a port until it is closed; only programs that reuse addresses can bind the port.

    vLLM imports for many seconds before it binds its port. Without the reservation another program could get it.
    """
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind(("127.0.0.1", 0))
    return reservation


class LocalEngine:
    """Runs one vLLM server. Its key is random, so that other users of the machine cannot use it."""

    def __init__(
        self, command: Sequence[str], model: str, options: Mapping[str, Any], env: Mapping[str, str], *, where: str
    ) -> None:
        """Prepare an engine; `where` is the instance name in errors.

        Raises:
            ConfigError: the program is not installed.
        """
        if shutil.which(command[0], path=env.get("PATH", os.environ.get("PATH"))) is None:
            raise ConfigError(
                f"the program {command[0]!r} is not installed",
                where=where,
                fix="pip install vllm, or set vllm_command to its path; for a running vLLM use vllm_model",
            )
        reservation = reserved_port()
        self._release_port = weakref.finalize(self, reservation.close)  # also for an engine that is never started
        self.port, self.api_key = int(reservation.getsockname()[1]), secrets.token_urlsafe(32)
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._words = command_line(command, model, self.port, options, served_name=model)
        self._env = {**os.environ, **env, "VLLM_API_KEY": self.api_key}
        self._where = where
        self._lines: deque[str] = deque(maxlen=LOG_LINES)
        self._process: asyncio.subprocess.Process | None = None
        self._log: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process, which ends with this one."""
        self._process = await asyncio.create_subprocess_exec(
            *self._words,
            env=self._env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=LINE_BYTES,
            start_new_session=True,
            preexec_fn=exit_with_parent,
        )
        self._log = asyncio.create_task(self._read_log(self._process))

    async def wait_until_ready(self, seconds: float) -> None:
        """Return when the engine has loaded the model.

        Raises:
            EngineFailed: it ended, or needs longer; the error has the last lines of its log.
        """
        timeout = aiohttp.ClientTimeout(total=PROBE_SECONDS)
        try:
            async with asyncio.timeout(seconds), aiohttp.ClientSession(timeout=timeout) as session:
                while not await self._is_healthy(session):
                    if self._process is None or self._process.returncode is not None:
                        raise self.failure()
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            fix = "raise start_timeout_seconds of the model and server_start_timeout_seconds"
            raise self._problem(f"vLLM is not ready after {seconds:g} s", fix) from None

    async def _is_healthy(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(f"http://127.0.0.1:{self.port}/health") as reply:
                return reply.status == 200
        except (aiohttp.ClientError, OSError):
            return False

    async def wait_for_end(self) -> None:
        """Return when the process has ended and its log is complete."""
        if self._process is not None and self._log is not None:
            await self._process.wait()
            await asyncio.wait([self._log], timeout=PROBE_SECONDS)

    def failure(self) -> EngineFailed:
        """Return the error for an engine that ended."""
        status = None if self._process is None else self._process.returncode
        return self._problem(f"vLLM ended with status {status}", "read the log above; vllm_serve_kwargs are its flags")

    def _problem(self, text: str, fix: str) -> EngineFailed:
        log = "\n".join(self._lines) or "(no output)"
        return EngineFailed(f"{text}; last lines of its log:\n{log}", where=self._where, fix=fix)

    async def _read_log(self, process: asyncio.subprocess.Process) -> None:
        """Keep the last lines and log all of them; without a reader the engine would block."""
        assert process.stdout is not None
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # longer than LINE_BYTES
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()[-SHOWN_CHARACTERS:]
            self._lines.append(text)
            logger.debug("vllm: %s", text)

    async def close(self) -> None:
        """End the process and those that it started: with SIGTERM, then with SIGKILL."""
        process, self._process = self._process, None
        self._release_port()
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            signal_group(process.pid, number)
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await process.wait()
                    break
            except TimeoutError:
                continue
        signal_group(process.pid, signal.SIGKILL)  # workers that outlive the server
        if self._log is not None:
            self._log.cancel()
