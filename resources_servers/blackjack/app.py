"""Blackjack: hit or stand against a dealer who draws to 17."""

import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field

from nemo_gym.base_resources_server import ReverifyMode
from nemo_gym.environment.verifier_fixture import VerifierFixture, offline_server
from nemo_gym.openai_utils import NeMoGymResponse
from resources_servers.gymnasium import (
    GymnasiumConfig,
    GymnasiumServer,
    GymnasiumVerifyRequest,
    GymnasiumVerifyResponse,
    extract_text,
)

Action = Literal["hit", "stand"]

RANKS = ("A", "2", "3", "4", "5", "6", "7", "8", "9", "10", "J", "Q", "K")
SUITS = "♠♥♦♣"
DEALER_STANDS = 17
BEST = 21
ASK = "Hit or stand?"

_ACTION = re.compile(r"<action>\s{0,100}(hit|stand)[\s.!]{0,100}</action>", re.IGNORECASE)


def action_in(text: str) -> Action | None:
    """The last action tag of a reply; None when there is none."""
    found = _ACTION.findall(text)
    if not found:
        return None
    return "hit" if found[-1].lower() == "hit" else "stand"


def value(cards: list[str]) -> int:
    """What a hand is worth: an ace is 11 as long as that is not too much, faces are 10."""
    ranks = [card[:-1] for card in cards]
    total = sum(1 if rank == "A" else 10 if rank in "JQK" else int(rank) for rank in ranks)
    return total + 10 if "A" in ranks and total + 10 <= BEST else total


def shuffled(seed: int) -> list[str]:
    """A deck in the order of its seed; cards are dealt from the end."""
    deck = [f"{rank}{suit}" for suit in SUITS for rank in RANKS]
    random.Random(seed).shuffle(deck)
    return deck


@dataclass
class Game:
    """One hand. Player, dealer, player, dealer get the first four cards."""

    deck: list[str]
    player: list[str] = field(default_factory=list)
    dealer: list[str] = field(default_factory=list)

    @classmethod
    def dealt(cls, seed: int) -> "Game":
        game = cls(shuffled(seed))
        for hand in (game.player, game.dealer, game.player, game.dealer):
            hand.append(game.deck.pop())
        return game

    def hit(self) -> bool:
        """Take a card; whether that was one too many."""
        self.player.append(self.deck.pop())
        return value(self.player) > BEST

    def stand(self) -> float:
        """The dealer plays; +1 for the better hand, 0 for a tie, -1 for the worse."""
        while value(self.dealer) < DEALER_STANDS:
            self.dealer.append(self.deck.pop())
        ours, theirs = value(self.player), value(self.dealer)
        if theirs > BEST or ours > theirs:
            return 1.0
        return 0.0 if ours == theirs else -1.0

    @property
    def table(self) -> str:
        """What the player sees while playing."""
        return f"Your hand: {_shown(self.player)}. The dealer shows {self.dealer[0]}."


def _shown(cards: list[str]) -> str:
    return f"{' '.join(cards)} ({value(cards)})"


class BlackjackConfig(GymnasiumConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS

    missing_action: Literal["stand", "lose"] = "stand"
    """What a reply without an action tag does."""


class BlackjackRow(BaseModel):
    seed: int = Field(ge=0, lt=2**63)
    """Decides the order of the deck."""


class BlackjackVerifyRequest(BlackjackRow, GymnasiumVerifyRequest):
    model_config = ConfigDict(extra="allow")


class BlackjackServer(GymnasiumServer):
    HOSTING = "cell"
    REPLAYS = True
    ROW: ClassVar[type[BaseModel]] = BlackjackRow

    config: BlackjackConfig

    async def reset(self, metadata: dict[str, Any], session_id: str) -> tuple[str, dict[str, Any]]:
        game = Game.dealt(metadata["seed"])
        self.keep(session_id, game)
        return f"{game.table} {ASK}", {"player": value(game.player)}

    async def step(
        self,
        action: NeMoGymResponse,
        metadata: dict[str, Any],  # noqa: ARG002
        session_id: str,
    ) -> tuple[str | None, float, bool, bool, dict[str, Any]]:
        game: Game = self.kept(session_id)
        said = action_in(extract_text(action))
        taken = said or self.config.missing_action
        if taken == "hit":
            if not game.hit():
                return f"{game.table} {ASK}", 0.0, False, False, self._info(game, said)
            return f"Your hand: {_shown(game.player)}. Bust.", -1.0, True, False, self._info(game, said)
        reward = game.stand() if taken == "stand" else -1.0
        end = f"Your hand: {_shown(game.player)}. The dealer has {_shown(game.dealer)}."
        return end, reward, True, False, self._info(game, said)

    async def verify(self, request: Request, body: BlackjackVerifyRequest) -> GymnasiumVerifyResponse:
        return await super().verify(request, body)

    def _info(self, game: Game, said: Action | None) -> dict[str, Any]:
        return {"player": value(game.player), "dealer": value(game.dealer), "action": said}

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """How often the hand was won, tied and lost."""
        rewards = [rollout["reward"] for task in tasks for rollout in task if "reward" in rollout]
        kinds = {"won": 1.0, "tied": 0.0, "lost": -1.0}
        return {name: rewards.count(worth) / len(rewards) for name, worth in kinds.items()} if rewards else {}

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        return {key: agent_metrics[key] for key in ("mean/reward", "won", "tied", "lost") if key in agent_metrics}


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(BlackjackServer),
    request_model=BlackjackVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


if __name__ == "__main__":
    BlackjackServer.run_webserver()
