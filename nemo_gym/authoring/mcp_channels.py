"""Channels to external MCP servers: JSON-RPC messages over the pipes of a process, or over streamable HTTP.

The protocol is a few messages, so that no package is needed and servers of any version of it can be used. Every message
has a maximum length, every wait an end, and a process ends with its channel, together with what it has started.
"""

import asyncio
import json
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Literal, Self

import aiohttp
from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_gym.errors import GymError

MAX_PROTOCOL_BYTES = 1 << 20
"""Added to the longest output: names, schemas and the envelope of a message."""
_ENV_NAMES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "USER", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""Environment variables that servers inherit; keys of models are not among them."""
_END_SECONDS = 2.0
_SUPERVISOR = Path(__file__).with_name("mcp_supervisor.py")
_STDERR_BYTES = 4000
_CHUNK = 1 << 16

Json = dict[str, Any]


class McpServer(BaseModel):
    """An external MCP server: a command that speaks over its pipes, or a URL that speaks streamable HTTP."""

    model_config = ConfigDict(extra="forbid")

    command: list[str] | None = Field(default=None, min_length=1)
    """The program and its arguments; it is started for each rollout, in a separate process group."""
    env: dict[str, str] = {}
    """Environment variables of the program, besides PATH, HOME, LANG and a few more of the agent server."""
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    tools: list[str] | None = None
    """Names of the tools that the model may call; all by default."""
    start_timeout_s: float = Field(default=30.0, gt=0)
    """Until the server has listed its tools."""
    call_timeout_s: float = Field(default=60.0, gt=0)
    """For one tool call; the model gets an error after it."""
    max_output_bytes: int = Field(default=1 << 20, ge=1)
    """Longest output of a tool; the model gets an error instead of a longer one."""
    transport: Literal["stdio", "http"] | None = None
    """Follows from `command` or `url`; only checked."""

    @model_validator(mode="after")
    def _check_transport(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("an MCP server needs either `command` or `url`")
        if self.url is not None and (self.env or self.cwd):
            raise ValueError("`env` and `cwd` belong to a server with a command")
        if self.command is not None and self.headers:
            raise ValueError("`headers` belong to a server with a URL")
        if self.transport not in (None, "stdio" if self.command else "http"):
            raise ValueError(f"transport {self.transport} does not fit {'`command`' if self.command else '`url`'}")
        return self


class ChannelClosed(GymError):
    """An MCP server has ended, or does not answer as the protocol demands."""


class MessageTooLong(GymError):
    """A message of an MCP server is longer than its limit."""


class Channel(ABC):
    """A connection that answers requests; it can be used by several tasks at the same time."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self.max_bytes = server.max_output_bytes + MAX_PROTOCOL_BYTES
        self.protocol_version: str | None = None
        self.numbers = count(1)

    @abstractmethod
    async def open(self) -> None:
        """Start or connect the server."""

    @abstractmethod
    async def request(self, method: str, params: Json) -> Json:
        """Send a request and return the message with its result or error.

        Raises:
            ChannelClosed: the server has ended or its answer is no such message.
            MessageTooLong: the answer is too long.
        """

    @abstractmethod
    async def notify(self, method: str, params: Json) -> None:
        """Send a message that has no answer."""

    @abstractmethod
    async def close(self) -> None:
        """End the connection and what was started for it. Idempotent."""


class StdioChannel(Channel):
    """A process whose standard input and output carry one message per line."""

    def __init__(self, server: McpServer) -> None:
        super().__init__(server)
        self.process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._errors: asyncio.Task[None] | None = None
        self._pending: dict[int, asyncio.Future[Json]] = {}
        self._stderr = b""
        self._problem: GymError | None = None

    async def open(self) -> None:
        """Start the process below a supervisor, which ends all of its descendants with it or with this process."""
        env = {name: os.environ[name] for name in _ENV_NAMES if name in os.environ} | self.server.env
        command = self.server.command or []
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", str(_SUPERVISOR), str(os.getpid()), *command,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=env, cwd=self.server.cwd, limit=self.max_bytes, start_new_session=True,
        )  # fmt: skip
        self._reader = asyncio.create_task(self._read_messages())
        self._errors = asyncio.create_task(self._read_errors())

    async def request(self, method: str, params: Json) -> Json:
        number = next(self.numbers)
        future = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            await self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
            answer: Json = await future
            return answer
        finally:
            self._pending.pop(number, None)

    async def notify(self, method: str, params: Json) -> None:
        await self._send({"jsonrpc": "2.0", "method": method, "params": params})

    async def _send(self, message: Json) -> None:
        process = self.process
        if self._problem is not None:
            raise self._problem
        assert process is not None and process.stdin is not None
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            await process.stdin.drain()
        except (OSError, RuntimeError) as error:
            raise await self._end_error() from error

    async def _read_messages(self) -> None:
        """Hand each answer to its request; answer the requests of the server, of which only `ping` is supported."""
        assert self.process is not None and self.process.stdout is not None
        output = self.process.stdout
        problem: GymError
        try:
            while line := await output.readline():
                with suppress(ValueError, RecursionError):  # programs print other lines, too
                    message = json.loads(line)
                    if isinstance(message, dict):
                        await self._dispatch(message)
            problem = await self._end_error()
        except ValueError:  # a line is longer than the limit
            problem = MessageTooLong(f"a message is longer than {self.max_bytes:,} bytes")
        except GymError as error:
            problem = error
        self._problem = problem  # of later calls, whose answers are not the ones that were too long
        if isinstance(problem, MessageTooLong):
            self._problem = ChannelClosed(f"it was ended: {problem.problem}")
        for future in self._pending.values():
            if not future.done():
                future.set_exception(problem)
        while await output.read(_CHUNK):  # so that the program does not wait, and the pipe is closed
            pass

    async def _dispatch(self, message: Json) -> None:
        number = message.get("id")
        if "method" in message:
            if number is not None:
                await self._send(answer_to(message))
            return
        future = self._pending.get(number) if isinstance(number, int) else None
        if future is not None and not future.done():
            future.set_result(message)

    async def _read_errors(self) -> None:
        """Keep the last output on standard error, for the message when the process ends early."""
        assert self.process is not None and self.process.stderr is not None
        while chunk := await self.process.stderr.read(_CHUNK):
            self._stderr = (self._stderr + chunk)[-_STDERR_BYTES:]

    async def _end_error(self) -> ChannelClosed:
        """Return the error that says how the process ended."""
        process = self.process
        if process is None:
            return ChannelClosed("the channel is closed")
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _END_SECONDS)
        if self._errors is not None:
            await asyncio.wait([self._errors], timeout=_END_SECONDS)
        text = self._stderr.decode(errors="replace").strip()
        return ChannelClosed(f"the program ended (status {process.returncode}){': ' + text if text else ''}")

    async def close(self) -> None:
        """Close the pipe, then end the process with SIGTERM and SIGKILL; the supervisor ends its descendants."""
        process, self.process = self.process, None
        if process is None:
            return
        self._problem = ChannelClosed("the channel is closed")
        if process.stdin is not None:
            process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _END_SECONDS)
                break
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        await process.wait()
        tasks = [task for task in (self._reader, self._errors) if task is not None]
        await asyncio.wait(tasks, timeout=_END_SECONDS)  # until the ends of the pipes
        for task in tasks:
            task.cancel()


class HttpChannel(Channel):
    """Streamable HTTP: every message is a POST, whose answer is JSON or a stream of events."""

    def __init__(self, server: McpServer) -> None:
        super().__init__(server)
        self._session: aiohttp.ClientSession | None = None
        self._session_id: str | None = None

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(
            headers=self.server.headers,
            timeout=aiohttp.ClientTimeout(total=None),  # the callers have deadlines, which may be longer
        )

    async def request(self, method: str, params: Json) -> Json:
        number = next(self.numbers)
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        try:
            async with self._post(message) as reply:
                if reply.status >= 400:
                    text = (await reply.content.read(_STDERR_BYTES)).decode(errors="replace")
                    raise ChannelClosed(f"{self.server.url} answered with status {reply.status}: {text}")
                self._session_id = reply.headers.get("mcp-session-id", self._session_id)
                if reply.content_type == "text/event-stream":
                    return await self._read_events(reply, number)
                return parse_message(await self._read_body(reply))
        except (aiohttp.ClientError, OSError) as error:
            raise ChannelClosed(f"{self.server.url} is not reachable: {error}") from error

    async def notify(self, method: str, params: Json) -> None:
        try:
            async with self._post({"jsonrpc": "2.0", "method": method, "params": params}):
                return
        except (aiohttp.ClientError, OSError) as error:
            raise ChannelClosed(f"{self.server.url} is not reachable: {error}") from error

    def _post(self, message: Json) -> Any:
        assert self._session is not None
        return self._session.post(str(self.server.url), json=message, headers=self._headers())

    def _headers(self) -> Mapping[str, str]:
        headers = {"Accept": "application/json, text/event-stream"}
        if self.protocol_version:
            headers["MCP-Protocol-Version"] = self.protocol_version
        if self._session_id:
            headers["Mcp-Session-Id"] = self._session_id
        return headers

    async def _read_body(self, reply: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        async for chunk in reply.content.iter_any():
            body += chunk
            if len(body) > self.max_bytes:
                raise MessageTooLong(f"a message is longer than {self.max_bytes:,} bytes")
        return bytes(body)

    async def _read_events(self, reply: aiohttp.ClientResponse, number: int) -> Json:
        """Return the event that answers a request; other events are notifications."""
        buffer = bytearray()
        async for chunk in reply.content.iter_any():
            buffer = (buffer + chunk).replace(b"\r\n", b"\n")  # joined first: a chunk may end between the two bytes
            while (end := buffer.find(b"\n\n")) >= 0:
                event, buffer = bytes(buffer[:end]), buffer[end + 2 :]
                lines = [line[5:].lstrip() for line in event.split(b"\n") if line.startswith(b"data:")]
                message = parse_message(b"\n".join(lines)) if any(lines) else {}
                if message.get("id") == number and "method" not in message:
                    return message
            if len(buffer) > self.max_bytes:
                raise MessageTooLong(f"a message is longer than {self.max_bytes:,} bytes")
        raise ChannelClosed(f"{self.server.url} ended the stream without an answer")

    async def close(self) -> None:
        """End the session at the server, if it gave one, and the connections."""
        session, self._session = self._session, None
        if session is None:
            return
        try:
            if self._session_id:
                with suppress(aiohttp.ClientError, OSError, TimeoutError):
                    timeout = aiohttp.ClientTimeout(total=_END_SECONDS)
                    async with session.delete(str(self.server.url), headers=self._headers(), timeout=timeout):
                        pass
        finally:
            await session.close()


def parse_message(body: bytes) -> Json:
    """Parse a JSON-RPC message.

    Raises:
        ChannelClosed: it is none.
    """
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ChannelClosed(f"the answer is no JSON: {body[:200]!r}") from error
    if not isinstance(message, dict):
        raise ChannelClosed(f"the answer is no JSON-RPC message: {body[:200]!r}")
    return message


def answer_to(request: Mapping[str, Any]) -> Json:
    """Return the answer to a request of a server: an empty result for `ping`, an error for all others."""
    answer: Json = {"jsonrpc": "2.0", "id": request["id"]}
    if request.get("method") == "ping":
        return answer | {"result": {}}
    return answer | {"error": {"code": -32601, "message": "not supported by this client"}}
