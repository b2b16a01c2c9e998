"""A harness of verifiers that plays in this process: it starts no program and installs nothing.

The package documents such harnesses: every call of the model goes through its interception server, which keeps the
trace, applies limits and stops, and forwards the call to the client's endpoint, which is ours.
"""

import json
from contextlib import AsyncExitStack
from typing import Any

import httpx
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harness import Harness
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult

__all__ = ["GymHarness", "GymHarnessConfig"]


class GymHarnessConfig(HarnessConfig):
    pass


class GymHarness(Harness[GymHarnessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: dict[str, str], data: Any,  # noqa: ARG002
    ) -> ProgramResult:  # fmt: skip
        """Play until the model calls no tool, or the package refuses a turn."""
        system, prompt = self.resolve_prompt(data)
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or ()]
        servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        async with AsyncExitStack() as stack:
            tools, names, connections = await connect_mcp({"mcpServers": servers}, stack)
            client = await stack.enter_async_context(httpx.AsyncClient(timeout=None, trust_env=False))
            while True:
                body = {"model": ctx.model, "messages": messages, **({"tools": tools} if tools else {})}
                headers = {"Authorization": f"Bearer {secret}"}
                reply = await client.post(f"{endpoint}/chat/completions", json=body, headers=headers)
                if reply.is_error:
                    return ProgramResult(1, "", reply.text[:2000])
                message = reply.json()["choices"][0]["message"]
                messages.append({key: value for key, value in message.items() if value is not None})
                if not message.get("tool_calls"):
                    return ProgramResult(0, "", "")
                for call in message["tool_calls"]:
                    content = await run_tool(call["function"], names, connections)
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


async def run_tool(function: dict[str, str], names: dict[str, Any], connections: dict[str, Any]) -> Any:
    """Return the output of a tool call; a mistake of the model is an output that it reads."""
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except json.JSONDecodeError as error:
        return f"error: invalid JSON in tool arguments ({error}); resend the call with valid JSON"
    if not isinstance(arguments, dict):
        return f"error: tool arguments must be a JSON object, got {type(arguments).__name__}; resend as an object"
    if function["name"] not in names:
        return f"error: unknown tool {function['name']!r}"
    return await call_mcp(connections, names, function["name"], arguments)
