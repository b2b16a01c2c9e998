"""Blackjack: hit or stand against a dealer who draws to 17."""

import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_gym.authoring.gymnasium import (
    GymnasiumConfig,
    GymnasiumServer,
    GymnasiumVerifyRequest,
    GymnasiumVerifyResponse,
    extract_text,
)
from nemo_gym.authoring.verifier_cases import VerifierFixture, offline_server
from nemo_gym.base_resources_server import ReverifyMode
from nemo_gym.global_config import TASK_INDEX_KEY_NAME
from nemo_gym.openai_utils import NeMoGymResponse

Action = Literal["hit", "stand"]

RANKS = ("A", "2", "3", "4", "5", "6", "7", "8", "9", "10", "J", "Q", "K")
SUITS = "♠♥♦♣"
DEALER_STANDS = 17
BEST = 21
ASK = "Hit or stand?"

_ACTION = re.compile(r"<action>\s{0,100}(hit|stand)[\s.!]{0,100}</action>", re.IGNORECASE)


def last_action(text: str) -> Action | None:
    """Return the action of the last action tag of a reply, or None."""
    actions = _ACTION.findall(text)
    if not actions:
        return None
    return "hit" if actions[-1].lower() == "hit" else "stand"


def hand_value(cards: list[str]) -> int:
    """Return the value of a hand: an ace counts 11 unless that is too much, a face counts 10."""
    ranks = [card[:-1] for card in cards]
    total = sum(1 if rank == "A" else 10 if rank in "JQK" else int(rank) for rank in ranks)
    return total + 10 if "A" in ranks and total + 10 <= BEST else total


def shuffle_deck(seed: int) -> list[str]:
    """Return a deck in the order of its seed; cards are dealt from the end."""
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
    def deal(cls, seed: int) -> "Game":
        game = cls(shuffle_deck(seed))
        for hand in (game.player, game.dealer, game.player, game.dealer):
            hand.append(game.deck.pop())
        return game

    def hit(self) -> bool:
        """Take a card; return whether the hand is over 21."""
        self.player.append(self.deck.pop())
        return hand_value(self.player) > BEST

    def stand(self) -> float:
        """Let the dealer play; return +1 for a win, 0 for a tie, -1 for a loss."""
        while hand_value(self.dealer) < DEALER_STANDS:
            self.dealer.append(self.deck.pop())
        ours, theirs = hand_value(self.player), hand_value(self.dealer)
        if theirs > BEST or ours > theirs:
            return 1.0
        return 0.0 if ours == theirs else -1.0

    @property
    def table(self) -> str:
        """The cards that the player sees while playing."""
        return f"Your hand: {_format_hand(self.player)}. The dealer shows {self.dealer[0]}."


def _format_hand(cards: list[str]) -> str:
    return f"{' '.join(cards)} ({hand_value(cards)})"


class BlackjackConfig(GymnasiumConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS

    missing_action: Literal["stand", "lose"] = "lose"
    """The effect of a reply without an action tag. `stand` pays silence: standing wins every second hand."""


class BlackjackRow(BaseModel):
    seed: int = Field(ge=0, lt=2**63)
    """Decides the order of the deck. In a row without it, the number of the task: its repeats play the same hand."""

    @model_validator(mode="before")
    @classmethod
    def use_task_number(cls, row: Any) -> Any:
        needs_seed = isinstance(row, dict) and "seed" not in row and TASK_INDEX_KEY_NAME in row
        return {**row, "seed": row[TASK_INDEX_KEY_NAME]} if needs_seed else row


class BlackjackVerifyRequest(BlackjackRow, GymnasiumVerifyRequest):
    model_config = ConfigDict(extra="allow")


class BlackjackServer(GymnasiumServer):
    HOSTING = "cell"
    REPLAYS = True
    ROW: ClassVar[type[BaseModel]] = BlackjackRow

    config: BlackjackConfig

    async def reset(self, metadata: dict[str, Any], session_id: str) -> tuple[str, dict[str, Any]]:
        game = Game.deal(metadata["seed"])
        self.save_state(session_id, game)
        return f"{game.table} {ASK}", {"player": hand_value(game.player)}

    async def step(
        self,
        action: NeMoGymResponse,
        metadata: dict[str, Any],  # noqa: ARG002
        session_id: str,
    ) -> tuple[str | None, float, bool, bool, dict[str, Any]]:
        game: Game = self.load_state(session_id)
        tag = last_action(extract_text(action))
        move = tag or self.config.missing_action
        if move == "hit":
            if not game.hit():
                return f"{game.table} {ASK}", 0.0, False, False, self._info(game, tag)
            return f"Your hand: {_format_hand(game.player)}. Bust.", -1.0, True, False, self._info(game, tag)
        reward = game.stand() if move == "stand" else -1.0
        end = f"Your hand: {_format_hand(game.player)}. The dealer has {_format_hand(game.dealer)}."
        return end, reward, True, False, self._info(game, tag)

    async def verify(self, request: Request, body: BlackjackVerifyRequest) -> GymnasiumVerifyResponse:
        return await super().verify(request, body)

    def _info(self, game: Game, tag: Action | None) -> dict[str, Any]:
        return {"player": hand_value(game.player), "dealer": hand_value(game.dealer), "action": tag}

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """Return the shares of hands that were won, tied and lost."""
        rewards = [rollout["reward"] for task in tasks for rollout in task if "reward" in rollout]
        kinds = {"won": 1.0, "tied": 0.0, "lost": -1.0}
        return {name: rewards.count(reward) / len(rewards) for name, reward in kinds.items()} if rewards else {}

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        return {key: agent_metrics[key] for key in ("mean/reward", "won", "tied", "lost") if key in agent_metrics}


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(BlackjackServer),
    request_model=BlackjackVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


if __name__ == "__main__":
    BlackjackServer.run_webserver()
