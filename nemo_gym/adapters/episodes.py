"""One episode of another package's environment. An adapter implements `PeerEpisode` in about 60 lines.

Every session has its process, so the environment may block, seed globally, hang or exit. This module and the
adapter's are imported there and import no server code.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from nemo_gym.adapters.opponents import scripted_action

Row = dict[str, Any]
"""`environment` (the id), `seed`, `arguments` for the constructor, and the fields of the source."""


@dataclass
class Action:
    """What a player does in its turn: text, and tool calls as `{"name", "arguments", "call_id"}`."""

    text: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class PeerTurn:
    """What the environment shows before the next turn, or at the end."""

    content: Any = ""
    """The observation of the next player: text or content parts; None for no message before the first turn."""
    reward: float = 0.0
    """The reward that the policy got for the action that led here."""
    done: bool = False
    truncated: bool = False
    """The episode ends here without having come to its end."""
    ending: str | None = None
    """How the episode ended: "finished", "illegal_move", "opponent_illegal_move", "truncated", or another word."""
    player: int | None = None
    """The player whose turn it is, in a game of several players."""
    rewards: dict[int, float] | None = None
    """The reward of each player at the end of a game of several players."""
    tools: list[dict[str, Any]] | None = None
    """Tools for the model, discovered when the episode begins."""
    outputs: dict[str, Any] | None = None
    """The output of each tool call, by call id."""
    messages: list[dict[str, Any]] | None = None
    """In place of `content`: items of a conversation that begins here, such as a system message and examples."""
    info: dict[str, Any] = field(default_factory=dict)


class PeerEpisode(ABC):
    """One episode; an instance plays one row and is closed."""

    @abstractmethod
    def start(self, row: Row) -> PeerTurn:
        """Construct and reset the environment; return the first observation."""

    @abstractmethod
    def step(self, action: Action) -> PeerTurn:
        """Apply the action of the player whose turn it is."""

    def close(self) -> None:
        """Free what the environment holds."""
        return


def episode_function(episode_class: type[PeerEpisode]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return the function that a session's process calls, with the episode as its state."""
    episode: PeerEpisode | None = None
    scripted: Random | None = None
    last = PeerTurn()

    def call(request: dict[str, Any]) -> dict[str, Any]:
        """Start, step or close the episode of this process."""
        nonlocal episode, scripted, last
        operation = request["operation"]
        if operation == "start":
            episode, scripted = episode_class(), Random(request["row"].get("seed"))
            last = episode.start(request["row"])
            return asdict(last)
        if episode is None or scripted is None:
            raise RuntimeError("the episode of this process was not started")
        if operation == "close":
            episode.close()
            return {}
        if operation == "scripted_step":
            action = Action(scripted_action(request["policy"], last.content, scripted, request["number"]))
        else:
            action = Action(**request["action"])
        last = episode.step(action)
        return {**asdict(last), "played": action.text}

    return call
