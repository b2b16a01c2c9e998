"""The server instances of a configuration as plain data, for those who only want to look something up."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_gym.keys import SERVER_TYPES


@dataclass(frozen=True, slots=True)
class Block:
    """One server instance."""

    name: str
    server_type: str
    implementation: str
    fields: Mapping[str, Any]

    def reference(self, key: str) -> str | None:
        """The instance that a field like `resources_server` names."""
        value = self.fields.get(key)
        name = value.get("name") if isinstance(value, Mapping) else None
        return name if isinstance(name, str) else None


def server_blocks(config: Mapping[str, Any]) -> dict[str, Block]:
    """Every server instance by its name. A block that cannot be resolved is taken as it is written."""
    found: dict[str, Block] = {}
    for name in config:
        instance = _plain(config, name)
        if not isinstance(instance, Mapping):
            continue
        for kind in SERVER_TYPES:
            implementations = instance.get(kind)
            if isinstance(implementations, Mapping) and implementations:
                implementation, fields = next(iter(implementations.items()))
                block = fields if isinstance(fields, Mapping) else {}
                found[str(name)] = Block(str(name), kind, str(implementation), block)
    return found


def _plain(config: Mapping[str, Any], name: Any) -> Any:
    try:
        value = config[name]
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException:
        value = config._get_node(name) if OmegaConf.is_config(config) else None  # type: ignore[attr-defined]
        return OmegaConf.to_container(value, resolve=False) if OmegaConf.is_config(value) else None
