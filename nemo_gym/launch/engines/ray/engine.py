"""From the configuration to the servers on a Ray cluster."""

from collections.abc import Mapping
from typing import Any, Self

from nemo_gym.launch.engines.base import Placement
from nemo_gym.launch.engines.ray.cluster_options import RayOptions
from nemo_gym.launch.engines.ray.cluster_run import ClusterRun
from nemo_gym.launch.engines.ray.connection import import_ray


class RayEngine:
    """Places a whole run of the servers on every node of a Ray cluster."""

    def __init__(self, options: RayOptions) -> None:
        self._options = options

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the engine.

        Raises:
            ConfigError: Ray is not installed, or an option is wrong.
        """
        import_ray()
        return cls(RayOptions.from_config(config))

    def create_run(self, placement: Placement) -> ClusterRun:
        return ClusterRun(placement, self._options)
