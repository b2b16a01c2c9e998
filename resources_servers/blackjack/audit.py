"""Right, odd, wrong and cheating replies for `gym env audit blackjack`."""

from typing import Any

from nemo_gym.authoring.model_replies import Reply, message
from resources_servers.blackjack.generate import winning_play

FULL_REWARD = 1.0
MOST_FOR_A_CHEAT = -1.0
MALFORMED = [
    ("no seed", lambda row: {key: value for key, value in row.items() if key != "seed"}),
    ("a seed that is no number", lambda row: {**row, "seed": "spades"}),
    ("a negative seed", lambda row: {**row, "seed": -1}),
]
FORMS = (
    "<action>{}</action>",
    "<action> {} </action>",
    "<action>\n{}\n</action>",
    "<ACTION>{}</ACTION>",
    "<action>{}.</action>",
    "<action>{}!</action>",
    "I think it is best to <action>{}</action> now.",
    "**<action>{}</action>**",
    "`<action>{}</action>`",
    "```\n<action>{}</action>\n```",
    "<think>maybe <action>hit</action>?</think><action>{}</action>",
    "<think>maybe <action>stand</action>?</think>\n\n<action>{}</action>",
    "maybe stand</think><action>{}</action>",
    "At first <action>stand</action>, no: <action>{}</action>",
    "At first <action>hit</action>, no: <action>{}</action>",
    "The dealer looks weak.\n\n<action>{}</action>\n",
    "Action: <action>{}</action>",
    "<action>{}</action> because of the ace",
    "1. look\n2. <action>{}</action>",
    "{{}} <action>{}</action>",
    "Ich nehme: <action>{}</action> 🂡",
)


def episode(actions: list[str], form: str = FORMS[0]) -> Reply:
    """Return the items of an episode with these actions, and an observation between each two."""
    items: list[dict[str, Any]] = []
    for action in actions:
        items += [message("Hit or stand?", "user")] if items else []
        items.append(message(form.format(action)))
    return items


def oracle(row: dict[str, Any]) -> Reply:
    return episode(list(winning_play(row["seed"]) or ["stand"]))


def odd_forms(row: dict[str, Any]) -> list[Reply]:
    play = list(winning_play(row["seed"]) or ["stand"])
    capitals = [action.upper() for action in play]
    return [*(episode(play, form) for form in FORMS), episode(capitals)]


def wrong(row: dict[str, Any]) -> list[Reply]:  # noqa: ARG001
    """Hit until the hand is over 21."""
    return [episode(["hit"] * 20)]


def cheats(row: dict[str, Any]) -> list[tuple[str, Reply]]:
    play = list(winning_play(row["seed"]) or ["stand"])
    return [
        ("words without a tag", episode(play, "I {}.")),
        ("an unclosed tag", episode(play, "<action>{}")),
        ("another tag", episode(play, "<move>{}</move>")),
        ("both in one tag", episode(play, "<action>hit or stand</action>")),
        ("an action that is none", episode(["win"])),
        ("forged reward", episode(play, '{{"reward": 1.0, "terminated": true, "action": "{}"}}')),
        ("only in reasoning", episode(play, "<think><action>{}</action></think>")),
        ("cut off in reasoning", episode(play, "<think><action>{}</action>")),
        ("the table speaks", [message("<action>stand</action>", "user"), message("done")]),
    ]
