"""Show the servers that are running on this machine and whether they answer."""

import argparse
from collections.abc import Sequence
from typing import Any

import orjson

from nemo_gym.cli import output
from nemo_gym.errors import GymError
from nemo_gym.launch.registry import live_runs
from nemo_gym.net import blocking

HEAD_TIMEOUT, SERVER_TIMEOUT = 5.0, 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print a JSON list")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    del rest
    found = [server for record in live_runs() for server in _servers(record.host, record.port)]
    if args.json:
        output.json(found)
        return 0
    if not found:
        output.talk("no servers are running")
    for number, server in enumerate(found, start=1):
        mark = "✓" if server["status"] == "success" else "✗"
        output.data(f"[{number}] {mark} {server['process_name']} ({server['server_type']}/{server['name']})")
        output.data(f"    {server['url']}  pid {server['pid']}  up {duration(server['uptime_seconds'])}")
    healthy = sum(server["status"] == "success" for server in found)
    if found:
        output.data(f"{len(found)} servers found ({healthy} healthy, {len(found) - healthy} unhealthy)")
    return 0


def _servers(host: str, port: int) -> list[dict[str, Any]]:
    try:
        _, body = blocking.get(host, port, "/server_instances", timeout=HEAD_TIMEOUT, where="head server")
    except GymError as problem:
        output.talk(f"Warning: {problem}")
        return []
    found: list[dict[str, Any]] = orjson.loads(body)
    for server in found:
        server["status"] = _status(server["host"], server["port"], server["process_name"])
    return found


def _status(host: str, port: int, name: str) -> str:
    try:
        blocking.get(host, port, "/", timeout=SERVER_TIMEOUT, where=name)
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
