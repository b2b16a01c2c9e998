"""Helpers of agents that run in a sandbox: reach the servers of the run, and verify what the agent answered."""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from nemo_gym.errors import ConfigError
from nemo_gym.failure_kinds import AGENT_RUN_ERROR
from nemo_gym.keys import MCP_METADATA_KEY
from nemo_gym.server_utils import ServerClient, get_response_json, get_server_url, raise_for_status
from nemo_gym.wire.stored_rollout import REWARD_KEY

_WILDCARDS = frozenset({"0.0.0.0", "::"})
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class UnreachableFromSandbox(ConfigError, ValueError):
    """A server listens only on this machine, and the sandbox may run on another machine."""


def sandbox_server_url(server_name: str, *, require_reachable: bool = False) -> str:
    """Return the URL at which a program in a sandbox reaches a server; a server on every address is at the loopback.

    Raises:
        UnreachableFromSandbox: (a ValueError) with `require_reachable`, the server is only reachable on this machine.
    """
    url = get_server_url(server_name)
    parts = urlsplit(url)
    host = parts.hostname or ""
    if require_reachable and host in _LOOPBACK | _WILDCARDS:
        fix = "start with +use_absolute_ip=true, or set the server's host to an address of this machine"
        raise UnreachableFromSandbox(f"{host} is not reachable from another machine", where=server_name, fix=fix)
    return f"{parts.scheme}://127.0.0.1:{parts.port}" if host in _WILDCARDS else url


def restricted_network_policy(provider: str | Mapping[str, Any], urls: Iterable[str]) -> dict[str, Any]:
    """Return the network policy that permits a sandbox to reach only the hosts of `urls`.

    `provider` is the name of a provider, or a `{name: arguments}` mapping with one provider.

    Raises:
        ConfigError: the provider has no network policies.
    """
    name = provider if isinstance(provider, str) else next(iter(provider), "")
    if name != "opensandbox":
        raise ConfigError(f"the sandbox provider {name!r} has no network policies", fix="use opensandbox")
    hosts = dict.fromkeys(host for url in urls if (host := urlsplit(url).hostname))
    return {"defaultAction": "deny", "egress": [{"action": "allow", "target": host} for host in hosts]}


async def seed_mcp_servers(
    client: ServerClient,
    servers: Iterable[str],
    body: Any,
    cookies: Any,
    *,
    timeout_s: float,
    require_reachable: bool = False,
) -> dict[str, dict[str, Any]]:
    """Seed a session at each resources server; return the MCP entry of each one for the agent's configuration.

    Raises:
        ConfigError: a server does not offer its tools over MCP.
    """
    entries: dict[str, dict[str, Any]] = {}
    for server in servers:
        response = await client.post(server_name=server, url_path="/seed_session", json=body, cookies=cookies)
        await raise_for_status(response)
        metadata = (await get_response_json(response)).get(MCP_METADATA_KEY)
        if not metadata:
            raise ConfigError("its tools are not offered over MCP", where=server, fix="expose_tools_over_mcp: true")
        entries[server] = {
            "url": sandbox_server_url(server, require_reachable=require_reachable) + metadata["url_path"],
            "headers": dict(metadata["headers"]),
            "enabled": True,
            "timeout": int(timeout_s * 1000),
        }
    return entries


async def verify_agent_response(
    client: ServerClient,
    server_name: str,
    body: Mapping[str, Any],
    response: Mapping[str, Any],
    cookies: Any,
    *,
    force_zero_reward: bool = False,
) -> dict[str, Any]:
    """Verify the answer of an agent at a resources server and return the verify response.

    With `force_zero_reward`, for an agent that failed by itself, an empty answer is verified: the session ends in
    order, and the result is a zero with the failure kind `agent_run_error`.

    Raises:
        ValueError: with `force_zero_reward`, the empty answer has a reward or is masked.
    """
    answer = {**response, "output": []} if force_zero_reward else dict(response)
    request = {**body, "response": answer}
    reply = await client.post(server_name=server_name, url_path="/verify", json=request, cookies=cookies)
    await raise_for_status(reply)
    verdict: dict[str, Any] = await get_response_json(reply)
    if not force_zero_reward:
        return verdict
    if verdict.get(REWARD_KEY) != 0 or verdict.get("mask_sample"):
        raise ValueError(f"{server_name}: an empty answer must have the reward 0, not {verdict.get(REWARD_KEY)!r}")
    return {**verdict, "failure_kind": AGENT_RUN_ERROR}
