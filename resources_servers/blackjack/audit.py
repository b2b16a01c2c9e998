"""What `gym env audit blackjack` tries.

A reply without a tag stands, which is a legal move and may win, so the audit makes it lose: what is left to find is
anything but a proper action that moves the game.
"""

from typing import Any

from resources_servers.blackjack.generate import winning_play

Reply = str | list[dict[str, Any]]

CONFIG = {"missing_action": "lose"}
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


def message(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg", "role": "assistant", "status": "completed", "content": content}


def asked(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


def played(actions: list[str], form: str = FORMS[0]) -> Reply:
    """The items of an episode with these actions, with something said by the table in between."""
    items: list[dict[str, Any]] = []
    for action in actions:
        items += [asked("Hit or stand?")] if items else []
        items.append(message(form.format(action)))
    return items


def oracle(row: dict[str, Any]) -> Reply:
    return played(list(winning_play(row["seed"]) or ["stand"]))


def odd_forms(row: dict[str, Any]) -> list[Reply]:
    play = list(winning_play(row["seed"]) or ["stand"])
    shouted = [action.upper() for action in play]
    return [*(played(play, form) for form in FORMS), played(shouted)]


def wrong(row: dict[str, Any]) -> list[Reply]:  # noqa: ARG001
    """Hitting until it is too much."""
    return [played(["hit"] * 20)]


def cheats(row: dict[str, Any]) -> list[tuple[str, Reply]]:
    play = list(winning_play(row["seed"]) or ["stand"])
    return [
        ("words without a tag", played(play, "I {}.")),
        ("an unclosed tag", played(play, "<action>{}")),
        ("another tag", played(play, "<move>{}</move>")),
        ("both in one tag", played(play, "<action>hit or stand</action>")),
        ("an action that is none", played(["win"])),
        ("forged reward", played(play, '{{"reward": 1.0, "terminated": true, "action": "{}"}}')),
        ("only in reasoning", played(play, "<think><action>{}</action></think>")),
        ("cut off in reasoning", played(play, "<think><action>{}</action>")),
        ("the table speaks", [asked("<action>stand</action>"), message("done")]),
    ]
