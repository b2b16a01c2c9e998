"""Limits that hold for a whole run, whichever of its processes makes the call."""

from collections.abc import Mapping, Sequence
from typing import Any

from nemo_gym.launch.endpoints import model_endpoints
from nemo_gym.launch.instances import Instance
from nemo_gym.net.places import SharedPlaces

LIMIT_KEY = "max_concurrent_requests"


class Shares:
    """The places of every model server that runs in several processes and has a limit, one lot per endpoint."""

    def __init__(self, config: Mapping[str, Any], found: Sequence[Instance], cells: int) -> None:
        self._in_cells = {instance.name for instance in found if instance.hosting == "cell"}
        self._places: dict[str, list[SharedPlaces]] = {}
        for instance in found:
            most = config[instance.name][instance.kind][instance.implementation].get(LIMIT_KEY)
            holders = cells if instance.hosting == "cell" else instance.num_workers
            if holders > 1 and isinstance(most, int) and most > 0:
                endpoints = len(model_endpoints({instance.name: config[instance.name]}))
                self._places[instance.name] = [SharedPlaces.create(most, holders) for _ in range(max(1, endpoints))]

    def descriptors(self) -> list[int]:
        """What a server process must inherit."""
        return [number for lots in self._places.values() for lot in lots for number in (lot.counter, lot.ledger)]

    def boot(self) -> dict[str, list[tuple[int, int]]]:
        """The same by instance, as JSON."""
        return {name: [(lot.counter, lot.ledger) for lot in lots] for name, lots in self._places.items()}

    def returned(self, request: Mapping[str, Any]) -> None:
        """The process that `request` brought up has ended: others may have the places it held."""
        in_cell = request["kind"] == "cell"
        names = self._in_cells if in_cell else {request["instance"]}
        for name in names & self._places.keys():
            for lot in self._places[name]:
                lot.returned(request["cell"] if in_cell else request["worker"])

    def close(self) -> None:
        for lots in self._places.values():
            for lot in lots:
                lot.close()
        self._places.clear()
