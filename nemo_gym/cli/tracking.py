"""A run reported to trackers without keeping its event loop waiting."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from nemo_gym.cli import output
from nemo_gym.cli.apart import on_thread
from nemo_gym.exporters import export_metrics, export_rollouts, setup_exporters, teardown_exporters
from nemo_gym.exporters.base import BaseExporter
from nemo_gym.rollouts.store import RolloutStore

OPENING_SECONDS = 5.0


class Tracking:
    """The trackers a configuration names, opened while the servers start. Nothing here ever raises for them."""

    def __init__(self, config: DictConfig) -> None:
        self._opening = asyncio.create_task(on_thread(partial(setup_exporters, config)))

    async def export(self, target: Path, entries: Sequence[Mapping[str, Any]], *, upload: bool) -> dict[str, str]:
        """Send metrics and, with `upload`, rollouts; returns where each tracker shows them."""
        opened = await self._opening
        if opened:
            names = " and ".join(exporter.name for exporter in opened)
            output.talk(f"exporting to {names}")
            await on_thread(partial(_export, target, entries, upload))
        return pages(opened)

    async def close(self) -> None:
        """Close the trackers' runs; what was exported stays. One that is still being opened is not waited for long."""
        await asyncio.wait({self._opening}, timeout=OPENING_SECONDS)
        if self._opening.done() and self._opening.result():
            await on_thread(teardown_exporters)
        self._opening.cancel()


def _export(target: Path, entries: Sequence[Mapping[str, Any]], upload: bool) -> None:
    export_metrics(dict(exported_metrics(entries)))
    if upload and target.exists():
        export_rollouts(RolloutStore(target).records)


def exported_metrics(entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """`<agent>/<metric>` and `key_metrics/<agent>/<metric>`."""
    for entry in entries:
        agent = entry["agent_ref"]["name"]
        yield from ((f"{agent}/{name}", value) for name, value in entry["agent_metrics"].items())
        yield from ((f"key_metrics/{agent}/{name}", value) for name, value in entry["key_metrics"].items())


def pages(opened: Sequence[BaseExporter]) -> dict[str, str]:
    """Where each tracker shows the run."""
    return {exporter.name: exporter.url for exporter in opened if exporter.url}
