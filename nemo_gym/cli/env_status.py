"""Show the servers that are running on this machine and whether they answer.

Every run of this user registers itself, so no port is needed; --run shows one of several.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson

from nemo_gym.cli import output
from nemo_gym.errors import GymError
from nemo_gym.launch.registry import RunEntry, choose_run, live_runs
from nemo_gym.net import blocking

HEAD_TIMEOUT, SERVER_TIMEOUT = 5.0, 2.0
AT_ONCE = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", metavar="RUN", help="one run: a process id, a head's port, or HOST:PORT")
    parser.add_argument("--json", action="store_true", help="print a JSON list")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    del rest
    runs = [choose_run(args.run)] if args.run else live_runs()
    found = {entry: _servers(entry) for entry in runs}
    everything = [server for servers in found.values() for server in servers]
    if args.json:
        output.json(everything)
        return 0
    if not everything:
        output.talk("no servers are running")
        return 0
    number = 0
    for entry, servers in found.items():
        if len(runs) > 1:
            output.data(f"run at {entry.address}, pid {entry.pid}, started in {entry.folder}")
        for server in servers:
            number += 1
            mark = "✓" if server["status"] == "success" else "✗"
            output.data(f"[{number}] {mark} {server['process_name']} ({server['server_type']}/{server['name']})")
            output.data(f"    {server['url']}  pid {server['pid']}  up {duration(server['uptime_seconds'])}")
    healthy = sum(server["status"] == "success" for server in everything)
    output.data(f"{number} servers found ({healthy} healthy, {number - healthy} unhealthy)")
    return 0


def _servers(entry: RunEntry) -> list[dict[str, Any]]:
    try:
        _, body = blocking.get(
            entry.host, entry.port, "/server_instances", timeout=HEAD_TIMEOUT, where=f"head server at {entry.address}"
        )
        found: list[dict[str, Any]] = orjson.loads(body)
    except (GymError, orjson.JSONDecodeError) as problem:
        output.talk(f"Warning: {problem}")
        return []
    with ThreadPoolExecutor(AT_ONCE) as asking:  # a hundred silent servers must not take 200 s
        statuses = asking.map(_status, found)
        for server, status in zip(found, statuses, strict=True):
            server["status"] = status
    return found


def _status(server: dict[str, Any]) -> str:
    try:
        blocking.get(server["host"], server["port"], "/", timeout=SERVER_TIMEOUT, where=server["process_name"])
    except TimeoutError:
        return "timeout"
    except ConnectionError:
        return "connection_error"
    except GymError:
        return "unknown_error"
    return "success"


def duration(seconds: float) -> str:
    """`1d 2h 3m 4.5s`, leaving out what is zero at the front."""
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    parts = [f"{int(value)}{unit}" for value, unit in ((days, "d"), (hours, "h"), (minutes, "m"))]
    shown = next((index for index, part in enumerate(parts) if part[0] != "0"), len(parts))
    return " ".join([*parts[shown:], f"{rest:.1f}s"])
