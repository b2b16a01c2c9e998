"""The resources server of an adapter: sessions in processes, turns of other players, typed endings.

A subclass names the function of its episodes (`EPISODES`) and may declare the fields of its rows (`ROW`).
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from nemo_gym.authoring.gymnasium import (
    GymnasiumConfig,
    GymnasiumServer,
    GymnasiumVerifyRequest,
    GymnasiumVerifyResponse,
    Metadata,
    extract_text,
)
from nemo_gym.base_resources_server import Opening, Step
from nemo_gym.config.environment_sources import is_model_name
from nemo_gym.errors import EnvFailed, GymError
from nemo_gym.keys import NG_FAILURE_CLASS_KEY, NG_FAILURE_DETAIL_KEY, RANDOM_MOVE
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseFunctionToolCall
from nemo_gym.server_utils import SESSION_ID_KEY, ModelServerRef, get_response_model, raise_for_status
from nemo_gym.wire.call_reply import parse_tool_arguments
from nemo_gym.wire.stored_rollout import LIMIT_CLASS
from nemo_gym.workers.sessions import SessionLimits, SessionWorkers, shared_workers

logger = logging.getLogger(__name__)

MAX_OTHER_TURNS = 1000
"""Turns of other players between two turns of the policy; more are an error of the environment."""


class PeerServerConfig(GymnasiumConfig):
    step_timeout_seconds: float = Field(default=60.0, gt=0)
    """Longest time of one step of the environment; then its process is killed and the rollout fails."""
    session_memory_bytes: int = Field(default=8 << 30, gt=0)
    """Largest address space of the process of one session."""
    max_processes: int = Field(default=512, ge=1)
    """Maximum number of sessions, each of which has a process."""
    opponent_model: ModelServerRef | None = None
    """The model server that plays for the other players, unless they are scripted, or that grades."""


class PeerRow(BaseModel):
    model_config = ConfigDict(extra="allow")

    environment: str
    """The id of the environment in its package."""
    seed: int = 0
    arguments: dict[str, Any] = {}
    """Arguments of its constructor."""
    player: int = 0
    """The player that the policy plays, in a game of several players."""
    opponent: str = RANDOM_MOVE
    """A scripted player; any other name stands for the model of `opponent_model`."""


class PeerVerifyResponse(GymnasiumVerifyResponse):
    ending: str
    """How the episode ended; "stopped" if the agent stopped before its end."""
    rewards: dict[int, float] | None = None
    """The reward of each player, in a game of several players."""
    other_turns: list[dict[str, Any]] = []
    """The turns of other players: player, observation, action."""


@dataclass
class PeerSession:
    """What the server keeps of an episode; the environment is in the process of the session."""

    row: Metadata
    other_turns: list[dict[str, Any]] = field(default_factory=list)
    conversations: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """The conversation of each player that a model plays."""
    turns_by_player: dict[int, int] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)


class PeerServer(GymnasiumServer):
    """Base class of adapters; see docs/adapters.md."""

    HOSTING = "cell"  # the environments run in other processes
    EPISODES: ClassVar[str]
    """The result of `episode_function`, as "module:name"."""
    ROW: ClassVar[type[BaseModel]] = PeerRow
    GRADES_AT_END: ClassVar[bool] = False
    """The only reward is that of the end, so an episode that the agent stops has reached a limit and has no reward."""

    config: PeerServerConfig
    _workers: SessionWorkers = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        config = self.config
        limits = SessionLimits(config.step_timeout_seconds, config.session_memory_bytes, config.max_processes)
        self._workers = shared_workers(self.EPISODES, limits)

    async def reset(self, metadata: Metadata, session_id: str) -> Opening:
        session = PeerSession(metadata)
        self.save_state(session_id, session)
        with self._attributing_errors():
            turn = await self._workers.start(session_id, {"operation": "start", "row": metadata})
        turn = await self._play_others(session_id, session, turn)
        return Opening(messages=_opening_messages(turn), tools=turn["tools"] or [])

    async def step(self, action: NeMoGymResponse, metadata: Metadata, session_id: str) -> Step:  # noqa: ARG002
        session: PeerSession = self.load_state(session_id)
        turn = session.last
        if not turn["done"]:  # another player may have ended the game before the first turn of the policy
            turn = await self._call(session_id, {"operation": "step", "action": _action_fields(action)})
            turn = await self._play_others(session_id, session, turn)
        return Step(
            turn["content"],
            outputs=turn["outputs"],
            reward=turn["reward"],
            done=turn["done"],
            truncated=turn["truncated"],
            info={**turn["info"], **({"ending": turn["ending"]} if turn["ending"] else {})},
        )

    async def close(self, session_id: str) -> None:
        """Let the environment close itself, then end its process."""
        try:
            await self._workers.call(session_id, {"operation": "close"})
        except GymError as error:  # the rollout has its outcome
            logger.debug("%s: an environment was not closed: %s", self.config.name, error)
        await self._workers.end(session_id)

    async def verify(  # type: ignore[override]  # the session comes with the request
        self, request: Request, body: GymnasiumVerifyRequest
    ) -> PeerVerifyResponse:
        verdict = await super().verify(request, body)
        session: PeerSession = self.load_state(request.session[SESSION_ID_KEY])
        fields = {
            "ending": session.last["ending"] or "stopped",
            "rewards": session.last["rewards"],
            "other_turns": session.other_turns,
        }
        if self.GRADES_AT_END and not session.last["done"]:
            fields |= {NG_FAILURE_CLASS_KEY: LIMIT_CLASS, NG_FAILURE_DETAIL_KEY: {"which": "steps"}}
        return PeerVerifyResponse(**(verdict.model_dump() | fields))

    async def _play_others(self, session_id: str, session: PeerSession, turn: dict[str, Any]) -> dict[str, Any]:
        """Let the other players act until the policy has its turn or the episode ends; return that turn."""
        row, reward = session.row, float(turn["reward"])
        for _ in range(MAX_OTHER_TURNS):
            player = turn["player"]
            if turn["done"] or player is None or player == row["player"]:
                session.last = {**turn, "reward": reward}
                return session.last
            number = session.turns_by_player.get(player, 0)
            session.turns_by_player[player] = number + 1
            content = turn["messages"] or turn["content"]
            request: dict[str, Any] = {"operation": "scripted_step", "policy": row["opponent"], "number": number}
            if is_model_name(row["opponent"]):
                conversation = session.conversations.setdefault(player, [])
                text = await self._ask_model(conversation, _opening_messages(turn))
                request = {"operation": "step", "action": {"text": text}}
            turn = await self._call(session_id, request)
            session.other_turns.append({"player": player, "observation": content, "action": turn["played"]})
            reward += turn["reward"]
        raise EnvFailed(f"the policy had no turn within {MAX_OTHER_TURNS:,} turns", where=self.config.name)

    async def _call(self, session_id: str, request: dict[str, Any]) -> dict[str, Any]:
        """Make a call in the process of the session."""
        with self._attributing_errors():
            turn: dict[str, Any] = await self._workers.call(session_id, request)
        return turn

    @contextmanager
    def _attributing_errors(self) -> Iterator[None]:
        """Attribute the errors of the environment to this server, so that they are failures of the environment."""
        try:
            yield
        except GymError as error:
            error.where = self.config.name
            raise

    async def _ask_model(self, conversation: list[dict[str, Any]], messages: list[dict[str, Any]]) -> str:
        """Return the action of the model that plays another player; a failed call fails the rollout."""
        model = self.config.opponent_model
        if model is None:
            raise EnvFailed(
                "the row names an opponent that is a model, and opponent_model is not set",
                where=self.config.name,
                fix="set opponent_model to a model server, or use a scripted opponent",
            )
        conversation += messages
        reply = await self.server_client.post(
            server_name=model.name, url_path="/v1/responses", json={"input": conversation}
        )
        await raise_for_status(reply)
        response = await get_response_model(reply, NeMoGymResponse)
        text = extract_text(response)
        if response.incomplete_details or not text.strip():  # neither a move nor a grade
            raise EnvFailed(f"the model {model.name} gave no complete answer", where=self.config.name)
        conversation.append({"role": "assistant", "content": text})
        return text


def _opening_messages(turn: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the next player sees as items of its conversation."""
    if turn["messages"] is not None:
        return list(turn["messages"])
    return [] if turn["content"] is None else [{"role": "user", "content": turn["content"]}]


def _action_fields(response: NeMoGymResponse) -> dict[str, Any]:
    """Return the action of the policy: its text, and its tool calls with arguments as JSON and as the model's text."""
    calls = []
    for item in response.output:
        if isinstance(item, NeMoGymResponseFunctionToolCall):
            try:
                arguments: Any = parse_tool_arguments(item.arguments)
            except ValueError:
                arguments = None
            fields = {"name": item.name, "arguments": arguments, "text": item.arguments, "call_id": item.call_id}
            calls.append(fields)
    return {"text": extract_text(response), "calls": calls}
