"""Tools of external MCP servers for an agent, declared in its configuration and connected for one rollout.

    mcp_servers:
      files: {command: [python, -m, my_files], call_timeout_s: 10}
      search: {url: "http://127.0.0.1:9000/mcp", tools: [search]}

A call is in the conversation like every other: the function call of the model and its output. A server that does not
start fails the rollout, as it lacks tools that the task needs; what happens in a call is an answer for the model.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from nemo_gym.authoring.mcp_channels import (
    Channel,
    ChannelClosed,
    HttpChannel,
    Json,
    McpServer,
    MessageTooLong,
    StdioChannel,
)
from nemo_gym.config.secret_text import mask_text
from nemo_gym.errors import AgentFailed
from nemo_gym.wire.episode import Content, image_part, text_part

__all__ = ["McpServer", "McpTools"]

PROTOCOL_VERSION = "2025-06-18"
SEPARATOR = "__"
MAX_TOOLS = 1000
_INVALID = re.compile(r"[^A-Za-z0-9_-]")


class McpTools:
    """The connected servers of one rollout, by the names of their tools."""

    def __init__(self, servers: Mapping[str, McpServer]) -> None:
        self._servers = servers
        self._channels: dict[str, Channel] = {}
        self._tools: dict[str, tuple[str, str]] = {}
        """The name that the model sees: the names of server and tool."""
        self.offered: list[Json] = []
        """The tools as the model is offered them."""

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._connect(name)) for name in self._servers]
            for name, task in zip(self._servers, tasks, strict=True):
                self._add_tools(name, task.result())
        except BaseException as error:
            await self._close()
            failures = error.exceptions if isinstance(error, ExceptionGroup) else [error]
            raise failures[0] from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close()

    async def call(self, name: str, arguments: dict[str, Any]) -> Content:
        """Call a tool and return its output, or an error for the model."""
        server_name, tool = self._tools[name]
        server, channel = self._servers[server_name], self._channels[server_name]
        try:
            async with asyncio.timeout(server.call_timeout_s):
                message = await channel.request("tools/call", {"name": tool, "arguments": arguments})
        except TimeoutError:
            return _error(f"{tool} gave no answer within {server.call_timeout_s:g} s.")
        except MessageTooLong:
            return _error(f"The answer of {tool} is longer than {server.max_output_bytes:,} bytes. Ask for less.")
        except ChannelClosed as closed:
            return _error(mask_text(f"{tool} cannot be called: {closed.problem}"))
        if "error" in message:
            return _error(mask_text(f"{tool}: {_message_of(message)}"))
        output = read_result(message.get("result"))
        size = len(output.encode()) if isinstance(output, str) else len(json.dumps(output))
        if size > server.max_output_bytes:
            return _error(f"The answer of {tool} is longer than {server.max_output_bytes:,} bytes. Ask for less.")
        return output

    async def _connect(self, name: str) -> list[Json]:
        """Start a server and return its tools.

        Raises:
            AgentFailed: it does not start, or not in time.
        """
        server = self._servers[name]
        channel: Channel = StdioChannel(server) if server.command else HttpChannel(server)
        self._channels[name] = channel
        try:
            async with asyncio.timeout(server.start_timeout_s):
                await channel.open()
                return await self._list_tools(channel)
        except TimeoutError:
            problem = f"it did not list its tools within {server.start_timeout_s:g} s"
        except (ChannelClosed, MessageTooLong) as error:
            problem = error.problem
        except OSError as error:
            problem = str(error)
        raise AgentFailed(mask_text(f"the MCP server does not start: {problem}"), where=f"mcp_servers.{name}")

    async def _list_tools(self, channel: Channel) -> list[Json]:
        """Open the session of the protocol and return all tools."""
        client = {"name": "nemo-gym", "version": "1"}
        params = {"protocolVersion": PROTOCOL_VERSION, "capabilities": {}, "clientInfo": client}
        result = _result_of(await channel.request("initialize", params))
        channel.protocol_version = str(result.get("protocolVersion") or PROTOCOL_VERSION)
        await channel.notify("notifications/initialized", {})
        tools: list[Json] = []
        cursor: str | None = None
        while len(tools) < MAX_TOOLS:
            page = _result_of(await channel.request("tools/list", {"cursor": cursor} if cursor else {}))
            tools += [tool for tool in page.get("tools") or () if isinstance(tool, dict) and tool.get("name")]
            cursor = page.get("nextCursor")
            if not cursor:
                break
        return tools

    def _add_tools(self, server_name: str, tools: list[Json]) -> None:
        """Offer the tools of a server that the configuration allows.

        Raises:
            AgentFailed: an allowed tool is missing, or two tools have the same name for the model.
        """
        allowed = self._servers[server_name].tools
        missing = sorted(set(allowed or ()) - {str(tool["name"]) for tool in tools})
        if missing:
            names = ", ".join(sorted(str(tool["name"]) for tool in tools))
            where = f"mcp_servers.{server_name}.tools"
            raise AgentFailed(f"the MCP server has no {', '.join(missing)}", where=where, fix=f"it has {names}")
        for tool in tools:
            if allowed is not None and tool["name"] not in allowed:
                continue
            name = _INVALID.sub("_", f"{server_name}{SEPARATOR}{tool['name']}")
            if name in self._tools:
                both = f"{'.'.join(self._tools[name])} and {server_name}.{tool['name']}"
                fix = "leave one out with `tools`, or rename a server"
                raise AgentFailed(f"{both} have the same name, {name}", where=f"mcp_servers.{server_name}", fix=fix)
            self._tools[name] = server_name, str(tool["name"])
            schema = tool.get("inputSchema")
            description = str(tool.get("description") or tool.get("title") or "")
            parameters = schema if isinstance(schema, dict) else {"type": "object", "properties": {}}
            function = {"type": "function", "name": name, "description": description, "strict": False}
            self.offered.append({**function, "parameters": parameters})

    async def _close(self) -> None:
        """End all servers, also if the caller is cancelled meanwhile."""
        channels, self._channels = list(self._channels.values()), {}
        closing = asyncio.gather(*(channel.close() for channel in channels), return_exceptions=True)
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await closing
            raise


def read_result(result: Any) -> Content:
    """Return the result of a call as the model sees it: its texts, or parts if it has images."""
    fields = result if isinstance(result, Mapping) else {}
    parts: list[Json] = []
    for block in fields.get("content") or ():
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "text":
            parts.append(text_part(str(block.get("text") or "")))
        elif kind == "image":
            parts.append(image_part(f"data:{block.get('mimeType') or 'image/png'};base64,{block.get('data') or ''}"))
        elif kind is not None:
            parts.append(text_part(json.dumps(block, ensure_ascii=False)))
    if not parts and fields.get("structuredContent") is not None:
        parts = [text_part(json.dumps(fields["structuredContent"], ensure_ascii=False))]
    if any(part["type"] == "input_image" for part in parts):
        return parts
    text = "\n".join(str(part["text"]) for part in parts)
    return _error(text) if fields.get("isError") else text


def _result_of(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the result of a message.

    Raises:
        ChannelClosed: the server answered with an error.
    """
    result = message.get("result")
    if not isinstance(result, Mapping):
        raise ChannelClosed(_message_of(message))
    return result


def _message_of(message: Mapping[str, Any]) -> str:
    error = message.get("error")
    text = error.get("message") if isinstance(error, Mapping) else error
    return str(text or "the server answered with an error")


def _error(problem: str) -> str:
    return json.dumps({"error": problem}, ensure_ascii=False)
