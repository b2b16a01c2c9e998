"""Start the servers of a configuration and keep them running until interrupted.

A server that crashes is restarted a few times. Exit status: 0 interrupted after all servers were ready, 3 servers did
not start or all have ended, 130 interrupted before all servers were ready, or interrupted twice.
"""

import argparse

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output
from nemo_gym.config.keys import CLUSTER
from nemo_gym.errors import GymError

POLL_SECONDS = 1.0


class ServersNotRunning(GymError, RuntimeError):
    """Servers that should be running are not."""

    exit_status = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_config_arguments(parser)
    options.add_key_flags([options.FlagGroup(parser, CLUSTER)], "env start")


def run(args: argparse.Namespace) -> int:
    import uvloop

    from nemo_gym.cli.shared import servers  # noqa: F401 - imported before the fork: servers share its modules
    from nemo_gym.launch.prefork import preforked_zygote

    with preforked_zygote(args.initial_gc_threshold):
        return uvloop.run(_start(args))


async def _start(args: argparse.Namespace) -> int:
    """Run the servers until an interrupt, or only construct them in a dry run; return the exit status."""
    import asyncio
    from contextlib import suppress

    from nemo_gym import component_search_roots
    from nemo_gym.cli.shared.concurrency import interrupt_event
    from nemo_gym.cli.shared.servers import load_servers_config, running_servers
    from nemo_gym.cli.terminal.log import ServerLogPrinter
    from nemo_gym.launch.run import construct_servers

    config = load_servers_config(args)
    if config.get("dry_run"):
        await construct_servers(config, component_search_roots(), watch=ServerLogPrinter(verbose=True))
        output.notify("dry run: every server could be constructed")
        return 0
    async with (
        interrupt_event() as stop,
        running_servers(config, stop, cells=1, verbose=True, is_public=True) as servers,
    ):
        for instance in servers.instances:
            output.notify(f"{instance.name}: http://{instance.host}:{instance.port} ({instance.hosting})")
        head = servers.config["head_server"]
        output.notify(f"all {len(servers.instances)} servers are ready; head at http://{head['host']}:{head['port']}")
        while not stop.is_set():
            if servers.is_lost:
                raise ServersNotRunning("every server ended and will not be restarted", fix="read the lines above")
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), POLL_SECONDS)
    return 0
