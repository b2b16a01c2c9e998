"""Reserve a place for a node run on different nodes of the cluster, with a placement group."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from nemo_gym.launch.engines.ray import connection
from nemo_gym.launch.engines.ray.cluster_options import RayOptions
from nemo_gym.launch.engines.ray.connection import (
    CALL_SECONDS,
    ClusterNode,
    ClusterUnreachable,
    check_nodes,
    format_resources,
)
from nemo_gym.serve.blocking import run_blocking

RESERVE_SECONDS = 30.0
"""Longest wait for resources that are in use: an ended driver's resources are free after a few seconds."""
PAUSE_SECONDS = 1.0


class NodeReservation:
    """A placement group with one bundle for each node run; `release` gives it back."""

    def __init__(self, options: RayOptions) -> None:
        self._options = options
        self.group: Any = None
        self.count = 1

    async def reserve(self) -> None:
        """Wait for the nodes and reserve a place on each; again if a node turns out to be lost meanwhile.

        Raises:
            ClusterUnreachable: there are too few nodes, or their resources are in use.
        """
        while True:
            nodes = await self._wait_for_nodes()
            self.count = self._options.num_nodes or len(nodes)
            try:
                await run_blocking(self._create_group, self.count, nodes, timeout=RESERVE_SECONDS + CALL_SECONDS)
                return
            except ClusterUnreachable:
                if nodes == await self._wait_for_nodes():
                    raise

    async def release(self) -> None:
        """Give back what is reserved. Idempotent."""
        if self.group is None:
            return
        group, self.group = self.group, None
        with suppress(Exception):  # the boundary to Ray: the cluster may have ended
            await run_blocking(connection.import_ray().util.remove_placement_group, group, timeout=CALL_SECONDS)

    async def _wait_for_nodes(self) -> list[ClusterNode]:
        """Return the nodes that can take a node run; wait for them if the cluster is still starting.

        Raises:
            ClusterUnreachable: there are too few within `node_start_timeout_seconds`, or none can ever take it.
        """
        count, reserved = self._options.num_nodes, self._options.resources
        end = time.monotonic() + (self._options.start_seconds if count is not None else 0)
        while True:
            nodes = await connection.living_nodes_in_time()
            try:
                check_nodes(nodes, count, reserved)
            except ClusterUnreachable:
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            return [node for node in nodes if node.has(reserved)]

    def _create_group(self, count: int, nodes: Sequence[ClusterNode]) -> None:
        """Reserve the resources of a node run on `count` different nodes.

        Raises:
            ClusterUnreachable: they are in use.
        """
        util = connection.import_ray().util
        reserved = dict(self._options.resources)
        # Kept at once: after an interrupt `release` gives it back.
        group = self.group = util.placement_group([reserved] * count, strategy="STRICT_SPREAD")
        if not group.wait(timeout_seconds=min(RESERVE_SECONDS, self._options.start_seconds)):
            self.group = None
            util.remove_placement_group(group)
            raise ClusterUnreachable(
                f"{count} nodes with {format_resources(reserved)} free are wanted: {'; '.join(map(str, nodes))}",
                where="node_resources",
                fix="ask for less, or end what uses them (`ray status`)",
            )
