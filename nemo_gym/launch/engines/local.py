"""The engine for one machine: all servers are processes of this machine."""

from nemo_gym.launch.engines.base import Placement
from nemo_gym.launch.run import Run


class LocalEngine:
    """Places all servers on this machine."""

    def create_run(self, placement: Placement) -> Run:
        return Run(placement.config, placement.roots, cells=placement.cells, watch=placement.watch)
