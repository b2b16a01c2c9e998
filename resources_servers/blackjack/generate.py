"""Write blackjack hands that can be won: `python generate.py OUT --rows 40 --seed 0`."""

import random
from typing import Any

from nemo_gym.data.generated import write_generated
from resources_servers.blackjack.app import BEST, Action, Game, value

RULES = """You play one hand of blackjack against a dealer, from one shuffled deck.

Cards count their number, faces 10, an ace 11 or 1, whichever is better for the hand. You see your cards and one of the
dealer's two. On each turn take another card (hit) or no more (stand). More than 21 loses at once. When you stand, the
dealer draws until 17 or more. The higher hand wins; more than 21 loses.

Answer each turn with your choice, hit or stand, in an action tag: <action>…</action>."""


def winning_play(seed: int) -> list[Action] | None:
    """The shortest line of play that wins this deck, for somebody who knows it; None when nothing does."""
    hits = 0
    while True:
        game = Game.dealt(seed)
        for _ in range(hits):
            game.hit()
        if value(game.player) > BEST:
            return None
        if game.stand() == 1.0:
            return ["hit"] * hits + ["stand"]  # type: ignore[return-value]
        hits += 1


def row(seed: int) -> dict[str, Any]:
    return {"responses_create_params": {"input": [{"role": "user", "content": RULES}]}, "seed": seed}


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """`count` different decks, each with a line of play that wins.

    Decks nobody could win teach nothing, and leaving them out changes no comparison between two ways to play: how
    often each wins is divided by the same number.
    """
    draw = random.Random(seed)
    decks: dict[int, None] = {}
    while len(decks) < count:
        deck = draw.randrange(2**31)
        if winning_play(deck) is not None:
            decks[deck] = None
    return [row(deck) for deck in decks]


def main() -> None:
    write_generated(rows, __doc__)


if __name__ == "__main__":
    main()
