"""The keys of the configuration that the Ray engine reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from nemo_gym.config.instances import server_instances
from nemo_gym.config.keys import value_of
from nemo_gym.errors import ConfigError
from nemo_gym.launch.engines.ray.connection import CPU

RESOURCES_FIELD = "resources"
"""Field of a server block."""
DEFAULT_RESOURCES = {CPU: 1.0}


@dataclass(frozen=True)
class RayOptions:
    """The keys of the configuration that this engine reads."""

    address: str | None = None
    num_nodes: int | None = None
    resources: Mapping[str, float] = field(default_factory=lambda: DEFAULT_RESOURCES)
    shared_path: str | None = None
    files: tuple[str, ...] = ()
    start_seconds: float = 300.0

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Read the keys.

        Raises:
            ConfigError: a resource is not a positive number.
        """
        return cls(
            address=value_of(config, "ray_address"),
            num_nodes=value_of(config, "num_nodes"),
            resources=reserved_resources(config),
            shared_path=value_of(config, "node_shared_path"),
            files=tuple(value_of(config, "node_files") or ()),
            start_seconds=float(value_of(config, "node_start_timeout_seconds")),
        )


def reserved_resources(config: Mapping[str, Any]) -> dict[str, float]:
    """Return what a node run reserves: `node_resources`, and the `resources` of each server block in addition.

    Raises:
        ConfigError: an amount is not a positive number.
    """
    requests = [("node_resources", value_of(config, "node_resources") or DEFAULT_RESOURCES)]
    for name, instance in server_instances(config).items():
        resources = instance.fields.get(RESOURCES_FIELD)
        if isinstance(resources, Mapping):  # a folder may have a field of this name and another type
            requests.append((f"{name}.{RESOURCES_FIELD}", resources))
    reserved: dict[str, float] = {}
    for where, resources in requests:
        for name, amount in resources.items():
            if not isinstance(amount, int | float) or isinstance(amount, bool) or not amount > 0:
                problem = f"{name} must be a positive number, not {amount!r}"
                raise ConfigError(problem, where=where, fix="such as {CPU: 8, memory: 16000000000}")
            reserved[str(name)] = reserved.get(str(name), 0.0) + float(amount)
    return reserved
