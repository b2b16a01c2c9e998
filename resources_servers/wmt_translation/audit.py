"""Right, odd, wrong and cheating replies for `gym env audit wmt_translation`."""

import unicodedata
from collections.abc import Callable
from typing import Any

from resources_servers.wmt_translation.sentences import SENTENCES

Row = dict[str, Any]

MOST_FOR_A_CHEAT = 0.35
"""chrF gives points for every pair of letters that two texts have in common."""

FORMS: list[Callable[[str], str]] = [
    lambda text: f"\n  {text}  \n",
    lambda text: f'"{text}"',
    lambda text: f"“{text}”",
    lambda text: f"„{text}“",
    lambda text: f"« {text} »",
    lambda text: f"**{text}**",
    lambda text: f"*{text}*",
    lambda text: f"`{text}`",
    lambda text: f"```\n{text}\n```",
    lambda text: f"```text\n{text}\n```",
    lambda text: f"Translation: {text}",
    lambda text: f"**Translation:** {text}",
    lambda text: f"Translation:\n\n{text}",
    lambda text: f"German translation: {text}",
    lambda text: f"Übersetzung: {text}",
    lambda text: f"译文：{text}",
    lambda text: f'Translation: "{text}"',
    lambda text: f"<think>Which word is it?</think>{text}",
    lambda text: unicodedata.normalize("NFD", text),
    lambda text: text.replace(" ", "\u00a0"),
    lambda text: text.replace(" ", "\n"),
    lambda text: text.replace("'", "’"),
    lambda text: f"\ufeff{text}\u200b",
    lambda text: text.replace("-", "‑"),
    lambda text: text.replace(",", "，") if "，" in text else text.replace("，", ","),
]


def oracle(row: Row) -> str:
    return str(row["reference"])


def odd_forms(row: Row) -> list[str]:
    return [form(row["reference"]) for form in FORMS]


def wrong(row: Row) -> list[str]:
    reference, target = row["reference"], row["target_language"]
    other = next(sentence[target] for sentence in SENTENCES if sentence[target] != reference)
    half = reference[: len(reference) // 2]
    return [half, other, reference[::-1], reference + " " + other, reference[:-3], reference.swapcase() + "?"]


def cheats(row: Row) -> list[tuple[str, str]]:
    target = row["target_language"]
    others = [sentence[target] for sentence in SENTENCES if sentence[target] != row["reference"]]
    return [
        ("the source text", row["source_text"]),
        ("the source text in quotes", f'"{row["source_text"]}"'),
        ("every sentence of the language", " ".join([*others, row["reference"]])),
        ("the reference ten times", " ".join([row["reference"]] * 10)),
        ("another sentence of the language", others[0]),
        ("letters", "e n i s r a t d h u " * 3),
        ("only reasoning", f"<think>{row['reference']}</think>"),
    ]


def _with(**fields: Any) -> Callable[[Row], Row]:
    return lambda row: {**row, **fields}


MALFORMED: list[tuple[str, Callable[[Row], Row]]] = [
    ("no reference", lambda row: {key: value for key, value in row.items() if key != "reference"}),
    ("an empty reference", _with(reference=" \n")),
    ("an empty source", _with(source_text="")),
    ("a reference that is a list", _with(reference=["a"])),
    ("no target language", _with(target_language="")),
]
