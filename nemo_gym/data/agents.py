"""The rows that agents' datasets hold, each stamped with the agent it is for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

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
    start_idx: int | None = None
    end_idx: int | None = None


def stamped_lines(datasets: Sequence[AgentDataset]) -> Iterator[bytes]:
    """The rows of all datasets in order, each with the agent it is for, as JSON lines.

    Raises:
        ConfigError: a line is not a JSON object.
    """
    for dataset in datasets:
        with dataset.path.open("rb") as lines:
            for number, line in islice(enumerate(lines, start=1), dataset.start_idx, dataset.end_idx):
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
