"""Where datasets are declared, and which agent runs them: the declaring one, or the one of the declaring server."""

from collections.abc import Iterable, Mapping
from typing import Any

from nemo_gym.config.instances import ServerInstance, server_instances
from nemo_gym.config.omegaconf_adapter import as_dict
from nemo_gym.errors import ConfigError
from nemo_gym.keys import AGENTS, RESOURCES

ENVIRONMENT_SERVERS = "environment_servers"
AGENT_SERVER = "agent_server"
DATASET_OWNERS = (AGENTS, RESOURCES)
"""The server types whose `datasets` are used."""


def dataset_owners(config: Mapping[Any, Any]) -> list[ServerInstance]:
    """Return the instances of a configuration that may declare datasets: its agents, then its resources servers."""
    instances = server_instances(config).values()
    return [instance for kind in DATASET_OWNERS for instance in instances if instance.server_type == kind]


def datasets_of(settings: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    """Return the datasets of a server block with their indices; entries that are not mappings are skipped."""
    datasets = settings.get("datasets")
    entries = enumerate(datasets) if isinstance(datasets, list) else ()
    return [(index, dataset) for index, dataset in entries if isinstance(dataset, Mapping)]


def environment_server_agents(config: Mapping[Any, Any]) -> dict[str, str]:
    """Return the agent of every block of `environment_servers`: its `agent_server`, else the only agent it names.

    These servers are not started; a row that names one goes to its agent.
    """
    agents: dict[str, str] = {}
    for name, block in as_dict(config).items():
        implementations = block.get(ENVIRONMENT_SERVERS) if isinstance(block, Mapping) else None
        for fields in implementations.values() if isinstance(implementations, Mapping) else ():
            references = {
                key: value["name"]
                for key, value in (fields.items() if isinstance(fields, Mapping) else ())
                if isinstance(value, Mapping)
                and "name" in value
                and (key == AGENT_SERVER or value.get("type") == AGENTS)
            }
            chosen = references.get(AGENT_SERVER) or (next(iter(references.values())) if len(references) == 1 else None)
            if chosen:
                agents[str(name)] = str(chosen)
    return agents


def resolve_dataset_agent(
    instances: Mapping[str, ServerInstance] | Iterable[ServerInstance], declaring_instance: str, pin: str | None = None
) -> str:
    """Return the agent of a dataset that `declaring_instance` declares; `pin` is the agent that the dataset names.

    Raises:
        ConfigError: the instance is neither an agent nor a resources server, several agents or none use the resources
            server, or the pinned agent is not one of them.
    """
    listed = instances.values() if isinstance(instances, Mapping) else instances
    by_name = {instance.name: instance for instance in listed}
    owner = by_name.get(declaring_instance)
    if owner is not None and owner.server_type == AGENTS:
        agents = [declaring_instance]
    elif owner is not None and owner.server_type == RESOURCES:
        agents = [
            instance.name
            for instance in by_name.values()
            if instance.server_type == AGENTS and instance.reference("resources_server") == declaring_instance
        ]
    else:
        candidates = [instance.name for instance in by_name.values() if instance.server_type in DATASET_OWNERS]
        problem = f"{declaring_instance!r} is no agent or resources server"
        raise ConfigError(problem, fix=f"one of {', '.join(candidates)}")
    chosen = [agent for agent in agents if pin in (None, agent)]
    if len(chosen) != 1:
        which = f"the agent {pin!r} does not use" if pin else f"{len(agents)} agents use"
        fix = f"name one with agent_name or agent_map: {', '.join(agents) or 'add an agent'}"
        raise ConfigError(f"{which} the resources server {declaring_instance!r} with the dataset", fix=fix)
    return chosen[0]
