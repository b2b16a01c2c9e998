"""Show the servers that are running on this machine and whether they answer.

Every run of this user is registered, so no port is needed; --run shows one of several runs.
"""

import argparse
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output
from nemo_gym.errors import GymError
from nemo_gym.keys import NODES_PATH
from nemo_gym.serve.run_registry import RunEntry, choose_run, live_runs
from nemo_gym.transport.blocking_get import get_blocking

HEAD_TIMEOUT, SERVER_TIMEOUT = 5.0, 2.0
MAX_THREADS = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags = options.FlagGroup(parser)
    flags.text("--run", "RUN", "run to show: PID, head port or HOST:PORT", "run_name")
    flags.json()


def run(args: argparse.Namespace) -> int:
    runs = [choose_run(args.run_name)] if args.run_name else live_runs()
    servers_by_run = {entry: _query_servers(entry) for entry in runs}
    all_servers = [server for servers in servers_by_run.values() for server in servers]
    if args.json:
        output.write_json(all_servers)
        return 0
    if not all_servers:
        output.notify("no servers are running")
        return 0
    number = 0
    for entry, servers in servers_by_run.items():
        if len(runs) > 1:
            output.write(f"run at {entry.address}, pid {entry.pid}, started in {entry.folder}")
        for node in _query_nodes(entry):
            output.write(_node_line(node))
        for server in servers:
            number += 1
            mark = "✓" if server["status"] == "success" else "✗"
            output.write(f"[{number}] {mark} {server['process_name']} ({server['server_type']}/{server['name']})")
            uptime = format_duration(server["uptime_seconds"])
            place = f"  {server['node']}" if server.get("node") else ""
            output.write(f"    {server['url']}  pid {server['pid']}  up {uptime}{place}")
    healthy = sum(server["status"] == "success" for server in all_servers)
    output.write(f"{number} servers found ({healthy} healthy, {number - healthy} unhealthy)")
    return 0


def _query_servers(entry: RunEntry) -> list[dict[str, Any]]:
    """Return the servers of a run with their status; warn if its head server does not answer."""
    callee = f"head server at {entry.address}"
    try:
        _, body = get_blocking(entry.host, entry.port, "/server_instances", timeout=HEAD_TIMEOUT, callee=callee)
        servers: list[dict[str, Any]] = orjson.loads(body)
    except (GymError, orjson.JSONDecodeError) as problem:
        output.warn(str(problem))
        return []
    with ThreadPoolExecutor(MAX_THREADS) as pool:  # a hundred servers that do not answer must not take 200 s
        for server, status in zip(servers, pool.map(_query_status, servers), strict=True):
            server["status"] = status
    return servers


def _node_line(node: Mapping[str, Any]) -> str:
    """Return the line of a node: `node-1  10.0.0.1  1 cell  3 rollouts in flight  load 0.50`."""
    counts = [
        f"{node[key]} {noun}{'s' if node[key] != 1 else ''}"
        for key, noun in (("cells", "cell"), ("in_flight", "rollout"))
    ]
    return f"{node['name']}  {node['address']}  {'  '.join(counts)} in flight  load {node['load']:.2f}"


def _query_nodes(entry: RunEntry) -> list[dict[str, Any]]:
    """Return the nodes of a run on several machines; empty for a run on this machine."""
    try:
        status, body = get_blocking(
            entry.host, entry.port, NODES_PATH, timeout=HEAD_TIMEOUT, callee=f"head server at {entry.address}"
        )
        nodes: list[dict[str, Any]] = orjson.loads(body) if status == 200 else []
    except (GymError, orjson.JSONDecodeError):  # reported by `_query_servers`, or a head of an earlier version
        return []
    return nodes


def _query_status(server: dict[str, Any]) -> str:
    """Return the status of a server, `success` or the kind of error, from its answer to `GET /`."""
    try:
        get_blocking(server["host"], server["port"], "/", timeout=SERVER_TIMEOUT, callee=server["process_name"])
    except TimeoutError:
        return "timeout"
    except ConnectionError:
        return "connection_error"
    except GymError:
        return "unknown_error"
    return "success"


def format_duration(seconds: float) -> str:
    """Format as `1d 2h 3m 4.5s`, without leading zero units."""
    days, remainder = divmod(seconds, 86400)
    hours, remainder = divmod(remainder, 3600)
    minutes, remainder = divmod(remainder, 60)
    parts = [f"{int(value)}{unit}" for value, unit in ((days, "d"), (hours, "h"), (minutes, "m"))]
    first = next((index for index, part in enumerate(parts) if part[0] != "0"), len(parts))
    return " ".join([*parts[first:], f"{remainder:.1f}s"])
