"""Read the server instances of a configuration, and the scoring rules and verifiers they declare."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_gym.errors import ConfigError
from nemo_gym.keys import SERVER_TYPES
from nemo_gym.rollouts.outcome import ScoringRule

MODELS, RESOURCES_SERVERS, AGENTS = SERVER_TYPES
REWARD_RANGE_KEY = "reward_range"
NEEDS_MODEL_KEY = "needs_model"


@dataclass(frozen=True, slots=True)
class ServerBlock:
    """The configuration block of one server instance."""

    name: str
    server_type: str
    implementation: str
    fields: Mapping[str, Any]

    def reference(self, key: str) -> str | None:
        """Return the name of the instance that a field like `resources_server` refers to, or None."""
        value = self.fields.get(key)
        name = value.get("name") if isinstance(value, Mapping) else None
        return name if isinstance(name, str) else None


def server_blocks(config: Mapping[str, Any]) -> dict[str, ServerBlock]:
    """Return every server instance by name. A value that cannot be resolved keeps its text."""
    blocks: dict[str, ServerBlock] = {}
    for name in config:
        instance = _resolve_child(config, name) if OmegaConf.is_config(config) else _resolve(config[name])
        if not isinstance(instance, Mapping):
            continue
        for kind in SERVER_TYPES:
            implementations = instance.get(kind)
            if isinstance(implementations, Mapping) and implementations:
                implementation, fields = next(iter(implementations.items()))
                fields = fields if isinstance(fields, Mapping) else {}
                blocks[str(name)] = ServerBlock(str(name), kind, str(implementation), fields)
    return blocks


def _resolve(node: Any) -> Any:
    if OmegaConf.is_dict(node):
        return {key: _resolve_child(node, key) for key in node}
    if OmegaConf.is_list(node):
        return [_resolve_child(node, position) for position in range(len(node))]
    return node


def _resolve_child(node: Any, key: Any) -> Any:
    try:
        return _resolve(node[key])
    except OmegaConfBaseException:
        return OmegaConf.to_container(node, resolve=False)[key]  # type: ignore[index]


def scoring_rules(config: Mapping[str, Any]) -> dict[str, ScoringRule]:
    """Return the scoring rule of each agent; agents without a block get the default rule.

    Raises:
        ConfigError: a declared reward range is invalid.
    """
    blocks = server_blocks(config)
    rules: dict[str, ScoringRule] = {}
    for block in blocks.values():
        if block.server_type != AGENTS:
            continue
        environment = blocks.get(block.reference("resources_server") or "")
        rules[block.name] = ScoringRule(
            reward_range=_reward_range(environment) if environment else None,
            needs_model=block.fields.get(NEEDS_MODEL_KEY) is not False,
            judges=_models(environment, blocks) - _models(block, blocks) if environment else frozenset(),
        )
    return rules


def _reward_range(environment: ServerBlock) -> tuple[float, float] | None:
    declared = environment.fields.get(REWARD_RANGE_KEY)
    if not isinstance(declared, list | tuple):
        return None  # not declared, or a third-party server uses the field for another purpose
    numbers = [value for value in declared if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) != 2 or len(declared) != 2 or not numbers[0] <= numbers[1]:
        raise ConfigError(
            f"{REWARD_RANGE_KEY} must be two numbers, lowest and highest, not {declared!r}",
            where=environment.name,
            fix=f"{REWARD_RANGE_KEY}: [0, 1]",
        )
    return float(numbers[0]), float(numbers[1])


def _models(block: ServerBlock, blocks: Mapping[str, ServerBlock]) -> frozenset[str]:
    """Return the model instances that a block refers to, at any depth."""

    def model_names(node: Any) -> set[str]:
        if isinstance(node, Mapping):
            own = {str(node["name"])} if node.get("type") == MODELS and node.get("name") else set()
            return own.union(*map(model_names, node.values()))
        return set().union(*map(model_names, node)) if isinstance(node, list | tuple) else set()

    return frozenset(name for name in model_names(block.fields) if name in blocks)


def find_verifiers(config: Mapping[str, Any], agents: Iterable[str | None]) -> dict[str | None, str]:
    """Return the resources server that verifies the rollouts of each agent: the one that the agent's block names.

    A configuration without agents must have exactly one resources server.

    Raises:
        ConfigError: an agent is not configured or has no resources server, or the choice is ambiguous.
    """
    blocks = server_blocks(config)
    servers = [block.name for block in blocks.values() if block.server_type == RESOURCES_SERVERS]
    fix = "use the configuration that the rollouts were collected with"
    if not any(block.server_type == AGENTS for block in blocks.values()):
        if len(servers) != 1:
            listed = ", ".join(servers) or "none"
            raise ConfigError(
                f"without agents the configuration must have one resources server; it has: {listed}", fix=fix
            )
        return dict.fromkeys(agents, servers[0])
    verifiers: dict[str | None, str] = {}
    problems = []
    for agent in agents:
        block = blocks.get(agent or "")
        server = block.reference("resources_server") if block is not None else None
        if block is None:
            problems.append(f"'{agent}' is not in the configuration" if agent else "some rollouts name no agent")
        elif server not in servers:
            problems.append(f"'{agent}' has no resources server")
        else:
            verifiers[agent] = str(server)
    if problems:
        raise ConfigError("; ".join(problems), where="agents", fix=fix)
    return verifiers
