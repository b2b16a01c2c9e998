"""Stored responses as jobs for a verifier: which rollouts, beside which inputs, for which server."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.keys import AGENT_REF_KEY_NAME, NG_FAILURE_CLASS_KEY, RESPONSE_KEY_NAME
from nemo_gym.rollouts.blocks import server_blocks
from nemo_gym.rollouts.job import Job, Row
from nemo_gym.rollouts.jsonl import read_rows
from nemo_gym.rollouts.key import RolloutKey
from nemo_gym.rollouts.outcome import FailureKind, Scored
from nemo_gym.rollouts.paths import failures_path_for
from nemo_gym.rollouts.profile import rows_with_offsets

AGENTS = "responses_api_agents"
RESOURCES_SERVERS = "resources_servers"
SHOWN = 5

Place = tuple[int, int]


@dataclass
class StoredRollouts:
    """The rollouts of a run and where their inputs are. Memory is who they are, not what they hold."""

    rollouts: Path
    inputs: Path
    places: set[Place] = field(default_factory=set)
    """Every scored rollout."""
    judge_failed: set[Place] = field(default_factory=set)
    """Rollouts whose judge failed and that were not scored in the end."""
    agents: dict[str | None, int] = field(default_factory=dict)
    """How many rollouts each agent has; None: agents that are not named."""
    _begin_of: dict[Place, int] = field(default_factory=dict)

    @classmethod
    def read(cls, rollouts: Path, inputs: Path, *, judge_failed_only: bool = False) -> "StoredRollouts":
        """Look through the files of a run.

        Raises:
            ConfigPathNotFoundError: one is not there.
            ConfigError: a rollout is there twice, or has no input.
            StoreError: a line is damaged.
        """
        missing = [str(path) for path in (rollouts, inputs) if not path.is_file()]
        if missing:
            raise ConfigPathNotFoundError(
                "there is no such file", where=", ".join(missing), fix="check --rollouts and --inputs"
            )
        found = cls(rollouts, inputs)
        for begin, row in rows_with_offsets(inputs):
            found._begin_of[_place(row, inputs)] = begin
        for record in read_rows(rollouts):
            place = _place(record, rollouts)
            if place in found.places:
                raise ConfigError(f"task {place[0]}, rollout {place[1]} is there twice", where=str(rollouts))
            found.places.add(place)
            found._count(record)
        for record in read_rows(failures_path_for(rollouts)) if judge_failed_only else ():
            if not is_judge_failure(record):
                continue
            place = _place(record, rollouts)
            if place not in found.places and place not in found.judge_failed:
                found.judge_failed.add(place)
                found._count(record)
        if not found.agents:
            raise ConfigError("there is nothing to verify in it", where=str(rollouts))
        found._check_inputs(found.judge_failed if judge_failed_only else found.places)
        return found

    def jobs(self, *, judge_failed_only: bool = False) -> Iterator[Job]:
        """What to verify, in the order it is stored: each input with the response that was given to it."""
        with self.inputs.open("rb") as inputs:
            for record in self._wanted(judge_failed_only):
                key = RolloutKey(*_place(record, self.rollouts))
                inputs.seek(self._begin_of[key.place])
                row: Row = orjson.loads(inputs.readline()) | key.stamp()
                if record.get(AGENT_REF_KEY_NAME):
                    row[AGENT_REF_KEY_NAME] = record[AGENT_REF_KEY_NAME]
                yield Job(key, {**row, RESPONSE_KEY_NAME: record.get(RESPONSE_KEY_NAME)})

    def scored(self) -> Iterator[Scored]:
        """The rollouts that have their score already, to be copied as they are."""
        for record in read_rows(self.rollouts):
            yield Scored(Job(RolloutKey.of(record), record), record)

    def _wanted(self, judge_failed_only: bool) -> Iterator[Row]:
        if not judge_failed_only:
            yield from read_rows(self.rollouts)
            return
        waiting = set(self.judge_failed)
        for record in read_rows(failures_path_for(self.rollouts)):
            place = _place(record, self.rollouts) if is_judge_failure(record) else None
            if place in waiting:
                waiting.discard(place)
                yield record

    def _count(self, record: Row) -> None:
        agent = agent_of(record)
        self.agents[agent] = self.agents.get(agent, 0) + 1

    def _check_inputs(self, wanted: Iterable[Place]) -> None:
        strangers = sorted(place for place in wanted if place not in self._begin_of)
        if strangers:
            shown = ", ".join(f"{task}:{rollout}" for task, rollout in strangers[:SHOWN])
            more = ", …" if len(strangers) > SHOWN else ""
            raise ConfigError(
                f"{len(strangers)} rollouts belong to no input row: {shown}{more}",
                where=str(self.inputs),
                fix="name the materialized inputs of the same run with --inputs",
            )


def is_judge_failure(record: Mapping[str, Any]) -> bool:
    """Whether this rollout was played to its end and only its judge failed."""
    return record.get(NG_FAILURE_CLASS_KEY) == FailureKind.JUDGE_FAILED


def agent_of(record: Mapping[str, Any]) -> str | None:
    """The agent that a row names."""
    reference = record.get(AGENT_REF_KEY_NAME)
    name = reference.get("name") if isinstance(reference, Mapping) else None
    return str(name) if name else None


def verifiers(config: Mapping[str, Any], agents: Iterable[str | None]) -> dict[str | None, str]:
    """The resources server that verifies the rollouts of each agent.

    It is the one the agent's block names. In a configuration without agents it is the only resources server.

    Raises:
        ConfigError: there is none for some agent, or no telling which.
    """
    blocks = server_blocks(config)
    servers = [block.name for block in blocks.values() if block.server_type == RESOURCES_SERVERS]
    if not any(block.server_type == AGENTS for block in blocks.values()):
        if len(servers) != 1:
            found = ", ".join(servers) or "none"
            raise ConfigError(
                f"without agents the configuration must have one resources server; it has: {found}",
                fix="name the configuration that the rollouts were collected with",
            )
        return dict.fromkeys(agents, servers[0])
    found_servers: dict[str | None, str] = {}
    problems = []
    for agent in agents:
        block = blocks.get(agent or "")
        server = block.reference("resources_server") if block is not None else None
        if block is None:
            problems.append(f"'{agent}' is not in the configuration" if agent else "some rollouts name no agent")
        elif server not in servers:
            problems.append(f"'{agent}' has no resources server")
        else:
            found_servers[agent] = str(server)
    if problems:
        raise ConfigError(
            "; ".join(problems), where="agents", fix="name the configuration that the rollouts were collected with"
        )
    return found_servers


def _place(record: Row, path: Path) -> Place:
    try:
        return RolloutKey.of(record).place
    except ValueError as error:
        raise ConfigError(f"a row does not say which rollout it is: {error}", where=str(path)) from error
