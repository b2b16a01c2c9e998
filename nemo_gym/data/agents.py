"""The rows that agents' datasets hold, each stamped with the agent it is for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.errors import ConfigError
from nemo_gym.keys import AGENT_REF_KEY_NAME

AGENTS = "responses_api_agents"
PREFERRED = ("benchmark", "validation", "example")
"""Which datasets are run when nobody says: the first of these types that any agent has."""


@dataclass(frozen=True)
class AgentDataset:
    """One dataset of one agent."""

    agent: str
    type: str
    path: Path
    num_repeats: int = 1


def agent_datasets(config: Mapping[str, Any], locate: Callable[[str], Path]) -> list[AgentDataset]:
    """Every dataset of every agent in a resolved configuration."""
    found = []
    for name, block in config.items():
        if not isinstance(block, Mapping) or AGENTS not in block:
            continue
        settings = next(iter(block[AGENTS].values()))
        for dataset in settings.get("datasets") or []:
            path = locate(str(dataset["jsonl_fpath"]))
            found.append(AgentDataset(name, dataset["type"], path, dataset.get("num_repeats") or 1))
    return found


def chosen_datasets(found: Sequence[AgentDataset], wanted: str | None) -> list[AgentDataset]:
    """The datasets of type `wanted`, or of the first preferred type there is; all of them must exist.

    Raises:
        ConfigError: there is none, or files are missing.
    """
    types = [wanted] if wanted else [kind for kind in PREFERRED if any(d.type == kind for d in found)][:1]
    chosen = [dataset for dataset in found if dataset.type in types]
    if not chosen:
        has = ", ".join(sorted({dataset.type for dataset in found})) or "none"
        raise ConfigError(
            f"no agent has a dataset of type {wanted or ' or '.join(PREFERRED)} (there are: {has})",
            fix="name a file with --input and its agent with --agent",
        )
    missing = [str(dataset.path) for dataset in chosen if not dataset.path.is_file()]
    if missing:
        raise ConfigError(f"dataset files are missing: {', '.join(missing)}", fix="create or download them first")
    return chosen


def stamped_lines(datasets: Sequence[AgentDataset]) -> Iterator[bytes]:
    """The rows of all datasets in order, each with the agent it is for, as JSON lines.

    Raises:
        ConfigError: a line is not a JSON object.
    """
    for dataset in datasets:
        with dataset.path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                stamped = _stamped(line, dataset.agent, where=f"{dataset.path}:{number}")
                for _ in range(dataset.num_repeats):
                    yield stamped


def _stamped(line: bytes, agent: str, where: str) -> bytes:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"not JSON: {error}", where=where) from None
    if not isinstance(row, dict):
        raise ConfigError("not a JSON object", where=where)
    row.setdefault(AGENT_REF_KEY_NAME, {"type": AGENTS, "name": agent})
    return orjson.dumps(row) + b"\n"
