"""Write blackjack hands that can be won: `python generate.py OUT --rows 40 --seed 0`."""

import random
from typing import Any

from nemo_gym.data.generator_command import run_generator
from resources_servers.blackjack.app import BEST, Action, Game, hand_value

RULES = """You play one hand of blackjack against a dealer, from one shuffled deck.

Cards count their number, faces 10, an ace 11 or 1, whichever is better for the hand. You see your cards and one of the
dealer's two. On each turn take another card (hit) or no more (stand). More than 21 loses at once. When you stand, the
dealer draws until 17 or more. The higher hand wins; more than 21 loses.

Answer each turn with your choice, hit or stand, in an action tag: <action>…</action>."""


def winning_play(seed: int) -> list[Action] | None:
    """Return the shortest line of play that wins this deck, or None if none does."""
    hits = 0
    while True:
        game = Game.deal(seed)
        for _ in range(hits):
            game.hit()
        if hand_value(game.player) > BEST:
            return None
        if game.stand() == 1.0:
            return ["hit"] * hits + ["stand"]  # type: ignore[return-value]
        hits += 1


def row(seed: int) -> dict[str, Any]:
    return {"responses_create_params": {"input": [{"role": "user", "content": RULES}]}, "seed": seed}


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return `count` different decks that can be won.

    Decks that cannot be won teach nothing, and leaving them out changes no comparison between two ways to play: the
    wins of both are divided by the same number.
    """
    draw = random.Random(seed)
    decks: dict[int, None] = {}
    while len(decks) < count:
        deck = draw.randrange(2**31)
        if winning_play(deck) is not None:
            decks[deck] = None
    return [row(deck) for deck in decks]


def main() -> None:
    run_generator(rows, __doc__)


if __name__ == "__main__":
    main()
