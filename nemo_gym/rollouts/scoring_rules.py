"""The scoring rules and verifiers that the server instances of a configuration declare."""

from collections.abc import Iterable, Mapping
from typing import Any

from nemo_gym.config.instances import ServerInstance, server_instances
from nemo_gym.errors import ConfigError
from nemo_gym.keys import SERVER_TYPES
from nemo_gym.rollouts.outcome import ScoringRule

MODELS, RESOURCES_SERVERS, AGENTS = SERVER_TYPES
REWARD_RANGE_KEY = "reward_range"
NEEDS_MODEL_KEY = "needs_model"


def scoring_rules(config: Mapping[str, Any]) -> dict[str, ScoringRule]:
    """Return the scoring rule of each configured agent.

    Raises:
        ConfigError: a declared reward range is invalid.
    """
    instances = server_instances(config)
    rules: dict[str, ScoringRule] = {}
    for agent in instances.values():
        if agent.server_type != AGENTS:
            continue
        verifier = instances.get(agent.reference("resources_server") or "")
        rules[agent.name] = ScoringRule(
            reward_range=_reward_range(verifier) if verifier else None,
            needs_model=agent.fields.get(NEEDS_MODEL_KEY) is not False,
            judges=_used_models(verifier, instances) - _used_models(agent, instances) if verifier else frozenset(),
            verifier=verifier.name if verifier else None,
        )
    return rules


def verifier_rules(config: Mapping[str, Any], verifiers: Mapping[str | None, str]) -> dict[str, ScoringRule]:
    """Return the scoring rules for verifying stored rollouts again; `verifiers` has the resources server of each agent.

    They do not require a model call: that was checked when the rollouts were collected.
    """
    instances = server_instances(config)
    return {
        agent: ScoringRule(_reward_range(instances[server]), needs_model=False, verifier=server)
        for agent, server in verifiers.items()
        if agent is not None and server in instances
    }


def _reward_range(verifier: ServerInstance) -> tuple[float, float] | None:
    """Return the lowest and highest reward that a resources server declares; None if it declares none."""
    declared = verifier.fields.get(REWARD_RANGE_KEY)
    if not isinstance(declared, list | tuple):
        return None  # not declared, or a third-party server uses the field for another purpose
    numbers = [value for value in declared if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) != 2 or len(declared) != 2 or not numbers[0] <= numbers[1]:
        raise ConfigError(
            f"{REWARD_RANGE_KEY} must be two numbers, lowest and highest, not {declared!r}",
            where=verifier.name,
            fix=f"{REWARD_RANGE_KEY}: [0, 1]",
        )
    return float(numbers[0]), float(numbers[1])


def _used_models(server: ServerInstance, instances: Mapping[str, ServerInstance]) -> frozenset[str]:
    """Return the model instances that the block of a server refers to, at any depth."""

    def model_names(node: Any) -> set[str]:
        if isinstance(node, Mapping):
            own = {str(node["name"])} if node.get("type") == MODELS and node.get("name") else set()
            return own.union(*map(model_names, node.values()))
        return set().union(*map(model_names, node)) if isinstance(node, list | tuple) else set()

    return frozenset(name for name in model_names(server.fields) if name in instances)


def find_verifiers(config: Mapping[str, Any], agents: Iterable[str | None]) -> dict[str | None, str]:
    """Return the resources server that verifies the rollouts of each agent: the one that the agent's block names.

    Without agents, the configuration must have exactly one resources server, which verifies all rollouts.

    Raises:
        ConfigError: an agent is not configured or has no resources server, or the choice is ambiguous.
    """
    instances = server_instances(config)
    servers = [block.name for block in instances.values() if block.server_type == RESOURCES_SERVERS]
    fix = "name the configuration that the rollouts were collected with"
    if not any(block.server_type == AGENTS for block in instances.values()):
        if len(servers) != 1:
            listed = ", ".join(servers) or "none"
            raise ConfigError(
                f"without agents the configuration must have one resources server; it has: {listed}", fix=fix
            )
        return dict.fromkeys(agents, servers[0])
    verifiers: dict[str | None, str] = {}
    problems = []
    for agent in agents:
        block = instances.get(agent or "")
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
