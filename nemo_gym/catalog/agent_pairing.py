"""Pair an environment with another agent: `--agent-type NAME` replaces the agent of the configuration.

The new agent gets the resources server, the model and the datasets of the old one, whose instance is removed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from nemo_gym.catalog.component_names import ComponentKind, UnknownName
from nemo_gym.catalog.components import OWN_FRAMEWORK_KEYS, load_entry_tree, load_tree
from nemo_gym.catalog.rows import parse_row
from nemo_gym.config.dataset_agents import datasets_of
from nemo_gym.config.instances import ServerInstance, instances_of
from nemo_gym.config.search_roots import find_file
from nemo_gym.errors import ConfigError
from nemo_gym.keys import AGENTS, RESOURCES

FLAG = "--agent-type"
AGENT_TYPE = ComponentKind(FLAG, AGENTS, configs="configs")
TURN_AGENT = "gymnasium_agent"
"""The agent of environments with /reset and /step; neither works with another counterpart."""
MCP_KEY = "expose_tools_over_mcp"
PROGRAM_AGENT = "harness_agent"
"""The agent of programs, which reach tools of an environment only over MCP."""


class ImpossiblePair(ConfigError, ValueError):
    """An agent cannot play in an environment."""

    exit_status = 2


@dataclass(frozen=True)
class Pairing:
    """What must be added to a configuration so that the agent plays in its environment."""

    path: Path
    """The configuration of the agent."""
    overrides: list[str]
    instance: str
    """The name of the agent instance."""


def agent_config_file(name: str, roots: Sequence[Path]) -> Path:
    """Return the configuration of an agent, a folder or a variant in a folder, with or without the folder's name.

    Raises:
        UnknownName: no root has it; the message contains the closest name.
    """
    is_safe = all(part not in ("", ".", "..") for part in name.split("/"))
    for root in roots if is_safe else ():
        candidates = [root / path for path in AGENT_TYPE.candidates(name)]
        candidates += sorted((root / AGENTS).glob(f"*/configs/{name}.yaml")) if "/" not in name else []
        path = next((path for path in candidates if path.is_file()), None)
        if path is not None:
            return path
    names = sorted({each for full in AGENT_TYPE.names(roots) for each in (full, full.rpartition("/")[2])})
    close = get_close_matches(name, names, n=1)
    raise UnknownName(f"unknown agent '{name}'", where=FLAG, fix=close[0] if close else f"one of {', '.join(names)}")


def pair_agent(name: str, config_paths: Sequence[str], roots: Sequence[Path], overrides: Sequence[str] = ()) -> Pairing:
    """Return what makes the agent `name` the agent of the environment in configuration files.

    `overrides` are those of the user, which may offer the tools of the environment over MCP.

    Raises:
        UnknownName: there is no such agent.
        ImpossiblePair: the agent cannot play in this environment, or there is not exactly one environment.
    """
    path = agent_config_file(name, roots)
    agent = _composable_agent(name, path, roots)
    agents: dict[str, ServerInstance] = {}
    servers: dict[str, ServerInstance] = {}
    for config_path in config_paths:
        tree = load_entry_tree(config_path, roots, strict=False)
        agents |= {each.name: each for each in instances_of(tree, AGENTS)}
        servers |= {each.name: each for each in instances_of(tree, RESOURCES)}
    owners = [each for each in agents.values() if each.reference("resources_server") in servers]
    names = list(dict.fromkeys(str(each.reference("resources_server")) for each in owners)) or list(servers)
    if len(names) != 1:
        listed = f"{len(names)}: {', '.join(names)}" if names else "none"
        raise ImpossiblePair(f"an agent is paired with one environment, not {listed}", where=FLAG, fix="name one")
    offer = f"{'.'.join(servers[names[0]].path)}.{MCP_KEY}=true"
    offers_mcp = servers[names[0]].fields.get(MCP_KEY) is True or any(word.lstrip("+") == offer for word in overrides)
    _check_pair(agent, owners, servers[names[0]].name, None if offers_mcp else f"++{offer}", roots)
    prefix = ".".join(agent.path)
    datasets = [dict(dataset) for owner in owners for _, dataset in datasets_of(owner.fields)]
    values: dict[str, Any] = {"resources_server": {"type": RESOURCES, "name": names[0]}}
    models = [owner.fields["model_server"] for owner in owners if owner.fields.get("model_server")]
    values |= {"model_server": dict(models[0])} if models else {}
    values |= {"datasets": datasets} if datasets else {}
    words = [f"++{prefix}.{key}={_override_text(value)}" for key, value in values.items()]
    words += [f"~{owner.name}" for owner in owners if owner.name != agent.name]
    return Pairing(path, words, agent.name)


def _override_text(value: Any) -> str:
    """Return a value in the syntax of overrides, whose mappings have keys without quotes."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_override_text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_override_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _composable_agent(name: str, path: Path, roots: Sequence[Path]) -> ServerInstance:
    """Return the agent instance of a configuration.

    Raises:
        ImpossiblePair: it has none, several, or one that contains its environment.
    """
    agents = instances_of(load_tree(path, roots, strict=False), AGENTS)
    if len(agents) != 1:
        raise ImpossiblePair(f"the configuration of '{name}' has {len(agents)} agents", where=str(path), fix="name one")
    is_composable = isinstance(agents[0].fields.get("resources_server"), Mapping)
    if not is_composable or any(key in agents[0].fields for key in OWN_FRAMEWORK_KEYS):
        problem = f"'{name}' contains its environment and cannot be paired with another"
        raise ImpossiblePair(problem, where=FLAG, fix="gym list agents shows the composable ones")
    return agents[0]


def _check_pair(
    agent: ServerInstance, owners: Sequence[ServerInstance], server: str, missing: str | None, roots: Sequence[Path]
) -> None:
    """Check that an agent and an environment understand each other.

    `missing` is the override that offers the tools of the environment over MCP; None if they are offered.

    Raises:
        ImpossiblePair: they do not.
    """
    plays_turns = any(owner.implementation == TURN_AGENT for owner in owners)
    if owners and plays_turns != (agent.implementation == TURN_AGENT):
        who, needs = (server, TURN_AGENT) if plays_turns else (agent.name, "an environment with /reset and /step")
        raise ImpossiblePair(f"{who} needs {needs}", where=f"{FLAG} {agent.name}", fix="gym list agents")
    if agent.implementation != PROGRAM_AGENT or missing is None:
        return
    for row in _first_rows(owners, roots):
        params = row.get("responses_create_params")
        tools = params.get("tools") if isinstance(params, Mapping) else None
        if tools and not row.get("workspace"):
            problem = f"the program cannot call the tools of {server}, which are not offered over MCP"
            raise ImpossiblePair(problem, where=f"{FLAG} {agent.name}", fix=missing)


def _first_rows(owners: Sequence[ServerInstance], roots: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the first row of every dataset whose file exists."""
    rows = []
    for owner in owners:
        for _, dataset in datasets_of(owner.fields):
            try:
                path = find_file(str(dataset.get("jsonl_fpath") or ""), roots)
            except ConfigError:  # not downloaded yet
                continue
            with path.open("rb") as file:
                line = file.readline()
            if line.strip():
                rows.append(parse_row(line, f"{path}:1"))
    return rows
