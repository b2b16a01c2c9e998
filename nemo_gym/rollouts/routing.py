"""Which agents run a row: its own agent, the agent of its `task_source`, or agents from `agent_map` and `fan_out`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nemo_gym.config.dataset_agents import environment_server_agents, resolve_dataset_agent
from nemo_gym.config.instances import ServerInstance, server_instances
from nemo_gym.config.keys import value_of
from nemo_gym.errors import ConfigError
from nemo_gym.keys import AGENT_REF_KEY_NAME, AGENTS, TASK_ID_KEY_NAME, TASK_SOURCE_KEY_NAME
from nemo_gym.wire.episode_task import flatten_task, is_materialized_task_row
from nemo_gym.wire.stored_rollout import Row

DEFAULT_ROUTE = "_default"


class NoAgentNamed(ConfigError):
    """Neither a row nor the options name an agent."""


@dataclass(frozen=True, kw_only=True)
class AgentRoutes:
    """The rules by which rows go to agents.

    In order of precedence: `fan_out` and `agent_map` by the name in `agent_ref`, then by `task_source`; the entry
    `_default` of `agent_map`; the row's `agent_ref`; `default_agent`; the agent of the row's `task_source`.
    """

    default_agent: str | None = None
    agent_map: Mapping[str, str] = field(default_factory=dict)
    fan_out: Mapping[str, list[str]] = field(default_factory=dict)
    """Several agents for a row; each runs it with separate rollout numbers."""
    instances: Mapping[str, ServerInstance] = field(default_factory=dict)
    environments: Mapping[str, str] = field(default_factory=dict)
    """The agent of each environment server, which a `task_source` may name, too."""
    tasksets: Mapping[str, str] = field(default_factory=dict)
    """The task source of each set of tasks with an identity: `environment_server_routes` of a configuration."""
    _sources: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_options(cls, options: Any, config: Mapping[Any, Any]) -> "AgentRoutes":
        """Return the routes of the options `agent_name`, `agent_map` and `fan_out` in a configuration."""
        return cls(
            default_agent=options.agent_name,
            agent_map=options.agent_map,
            fan_out=options.fan_out,
            instances=server_instances(config),
            environments=environment_server_agents(config),
            tasksets=value_of(config, "environment_server_routes") or {},
        )

    def flat_row(self, row: Row) -> Row:
        """Return a row with one level of fields; a task with an identity gets the `task_source` of its set.

        Raises:
            ValueError: the row is a task with an identity, but not a valid one.
        """
        if not is_materialized_task_row(row):
            return row
        taskset, flat = flatten_task(row)
        source = self.tasksets.get(taskset)
        return flat if source is None else {**flat, TASK_SOURCE_KEY_NAME: source}

    def advice(self, row: Row) -> str | None:
        """Return how to choose the agent of a row that is a task with an identity; None for other rows."""
        taskset = row[TASK_ID_KEY_NAME]["taskset"] if isinstance(row.get(TASK_ID_KEY_NAME), dict) else None
        return f"use --agent NAME, or set environment_server_routes.{taskset}" if taskset else None

    def references(self, row: Row) -> list[Row]:
        """Return a reference to each agent that runs a row.

        Raises:
            NoAgentNamed: the row names no agent.
            ConfigError: the `task_source` of the row has no single agent.
        """
        reference, source = row.get(AGENT_REF_KEY_NAME), row.get(TASK_SOURCE_KEY_NAME)
        name = reference.get("name") if isinstance(reference, dict) else None
        for key in (name, source) if self.agent_map or self.fan_out else ():
            if isinstance(key, str) and key in self.fan_out:
                return [_reference(agent) for agent in self.fan_out[key]]
            if isinstance(key, str) and key in self.agent_map:
                return [_reference(self.agent_map[key])]
        if DEFAULT_ROUTE in self.agent_map:
            return [_reference(self.agent_map[DEFAULT_ROUTE])]
        if isinstance(reference, dict) and isinstance(name, str) and name:
            return [reference]
        if not reference and self.default_agent:  # an invalid reference is not replaced by the default
            return [_reference(self.default_agent)]
        if not reference and isinstance(source, str) and source:
            return [_reference(self._agent_of_source(source))]
        raise NoAgentNamed(f"no '{AGENT_REF_KEY_NAME}' with a name, no '{TASK_SOURCE_KEY_NAME}' and no agent_name")

    def _agent_of_source(self, source: str) -> str:
        if source not in self._sources:
            try:
                self._sources[source] = resolve_dataset_agent(self.instances, self.environments.get(source, source))
            except ConfigError as error:
                raise ConfigError(f"{TASK_SOURCE_KEY_NAME}: {error.problem}", fix=error.fix) from None
        return self._sources[source]


def _reference(agent: Any) -> Row:
    return {"type": AGENTS, "name": str(agent)}
