"""Server instances: the top-level blocks `<name>: {<server type>: {<implementation>: {entrypoint: …, …}}}`."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from nemo_gym.config.omegaconf_adapter import RESOLVE_ERRORS, as_plain_value, resolve_leaves, unresolved_items
from nemo_gym.errors import NoServerInstancesError
from nemo_gym.keys import SERVER_TYPES

PLACEHOLDER_MODEL = "dummy_model"
"""The implementation that commands which need no model configure in place of the model."""


@dataclass(frozen=True, slots=True)
class ServerInstance:
    """One server instance of a configuration. `fields` is its implementation block."""

    name: str
    server_type: str
    implementation: str
    fields: Mapping[str, Any]

    @property
    def path(self) -> tuple[str, str, str]:
        """The keys that lead to `fields`."""
        return self.name, self.server_type, self.implementation

    def reference(self, field: str) -> str | None:
        """Return the instance name in a reference field such as `resources_server: {type: …, name: …}`."""
        value = self.fields.get(field)
        name = value.get("name") if isinstance(value, Mapping) else None
        return name if isinstance(name, str) else None


def server_instances(config: Mapping[Any, Any]) -> dict[str, ServerInstance]:
    """Return every server instance of a configuration (plain data or OmegaConf) by name.

    An interpolation that cannot be resolved keeps its text. A top-level key counts as an instance when it has a server
    type with at least one implementation; whether the block is valid is not checked.
    """
    instances = {}
    for key, unresolved in unresolved_items(config):
        try:
            block = as_plain_value(config[key])
        except RESOLVE_ERRORS:
            block = resolve_leaves(unresolved)
        instance = read_instance(str(key), block)
        if instance is not None:
            instances[instance.name] = instance
    return instances


def instances_of(config: Mapping[Any, Any], server_type: str) -> list[ServerInstance]:
    """Return the server instances of one type."""
    return [instance for instance in server_instances(config).values() if instance.server_type == server_type]


def read_instance(name: str, block: Any) -> ServerInstance | None:
    """Return the instance that a top-level block defines: its first server type and implementation; else None."""
    for server_type in SERVER_TYPES if isinstance(block, Mapping) else ():
        implementations = block.get(server_type)
        if isinstance(implementations, Mapping) and implementations:
            implementation, fields = next(iter(implementations.items()))
            return ServerInstance(name, server_type, str(implementation), fields if isinstance(fields, Mapping) else {})
    return None


def is_placeholder(block: Any) -> bool:
    """Return whether a top-level block is a model whose only implementation is the placeholder."""
    return isinstance(block, Mapping) and list(block.get("responses_api_models") or ()) == [PLACEHOLDER_MODEL]


def is_server_block(block: Any) -> bool:
    """Return whether a top-level block has the key of a server type, with or without an implementation."""
    return isinstance(block, Mapping) and any(server_type in block for server_type in SERVER_TYPES)


def check_server_types(config: Mapping[Any, Any]) -> None:
    """Raise NoServerInstancesError if a block looks like a server whose type is misspelt."""
    for name, block in config.items():
        for key in block if isinstance(block, Mapping) else ():
            similar = get_close_matches(str(key), SERVER_TYPES, n=1, cutoff=0.8)
            if similar and key not in SERVER_TYPES:
                problem = f"'{name}.{key}' is no server type, so it defines no server"
                raise NoServerInstancesError(problem, fix=f"write {similar[0]} in place of {key}")
