"""What `gym env start` does once its flags are read."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from nemo_gym import component_search_roots
from nemo_gym.cli import output
from nemo_gym.cli.env import POLL_SECONDS, ServersNotRunning
from nemo_gym.cli.serving import interruptible, servers, servers_config
from nemo_gym.launch.venv_rehearsal import rehearse


async def start(overrides: Sequence[str]) -> int:
    """Keep the servers up until interrupted, and return the exit status."""
    config = servers_config(overrides)
    if config.get("dry_run"):
        await rehearse(config, component_search_roots(), watch=lambda name, line: output.talk(f"({name}) {line}"))
        output.talk("dry run: every server could be built")
        return 0
    async with interruptible() as stop, servers(config, stop, cells=1, echo=True) as running:
        for instance in running.instances:
            output.talk(f"{instance.name}: http://{instance.host}:{instance.port} ({instance.hosting})")
        head = running.config["head_server"]
        output.talk(f"all {len(running.instances)} servers are ready; head at http://{head['host']}:{head['port']}")
        while not stop.is_set():
            if running.is_lost:
                raise ServersNotRunning("every server ended and will not be started again", fix="read the lines above")
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), POLL_SECONDS)
    return 0
