"""Limits on concurrent model requests across all processes of a run."""

from collections.abc import Mapping, Sequence
from typing import Any

from nemo_gym.launch.endpoint_readiness import model_endpoints
from nemo_gym.launch.hosting import Instance
from nemo_gym.transport import shared_semaphore
from nemo_gym.transport.shared_semaphore import SharedSemaphore

LIMIT_KEY = "max_concurrent_requests"

LimitDescriptors = Mapping[str, Sequence[tuple[int, int]]]
"""Name of a limited instance -> (counter, ledger) descriptors of the semaphore of each of its endpoints."""


class SharedLimits:
    """Semaphores for every endpoint of the model servers that have a limit and run in several processes."""

    def __init__(self, config: Mapping[str, Any], instances: Sequence[Instance], cells: int) -> None:
        self._cell_instances = {instance.name for instance in instances if instance.hosting == "cell"}
        self._semaphores: dict[str, list[SharedSemaphore]] = {}
        for instance in instances:
            limit = config[instance.name][instance.kind][instance.implementation].get(LIMIT_KEY)
            holders = cells if instance.hosting == "cell" else instance.num_workers
            if holders > 1 and isinstance(limit, int) and limit > 0:
                endpoints = max(1, len(model_endpoints({instance.name: config[instance.name]})))
                self._semaphores[instance.name] = [SharedSemaphore.create(limit, holders) for _ in range(endpoints)]

    def descriptors(self) -> LimitDescriptors:
        """Return the descriptors that server processes inherit."""
        return {name: [(one.counter, one.ledger) for one in group] for name, group in self._semaphores.items()}

    def release(self, request: Mapping[str, Any]) -> None:
        """Release the slots held by a process that has ended; `request` is the one that started it."""
        is_cell = request["kind"] == "cell"
        names = self._cell_instances if is_cell else {request["instance"]}
        for name in names & self._semaphores.keys():
            for semaphore in self._semaphores[name]:
                semaphore.release_holder(request["cell"] if is_cell else request["worker"])

    def close(self) -> None:
        for group in self._semaphores.values():
            for semaphore in group:
                semaphore.close()
        self._semaphores.clear()


def adopt_limits(descriptors: LimitDescriptors, names: set[str], holder: int) -> None:
    """Use the inherited semaphores of the instances `names`; `holder` is the number of this cell or worker."""
    for name in names & descriptors.keys():
        shared_semaphore.adopt_semaphores(
            name, [SharedSemaphore(counter, ledger, holder) for counter, ledger in descriptors[name]]
        )
