"""Right, odd, wrong and cheating replies for `gym env audit mcqa`."""

from typing import Any

from nemo_gym.authoring.model_replies import Reply

BOXES = (
    r"\boxed{%s}", r"\boxed{ %s }", r"\boxed {%s}", r"\fbox{%s}", r"$\boxed{%s}$", r"\[\boxed{%s}\]",
    r"\boxed{\text{%s}}", r"\boxed{\textbf{%s}}", r"\boxed{\mathrm{%s}}", r"\boxed{(%s)}", r"\boxed{\text{(%s)}}",
    r"\boxed{%s.}", r"<think>\boxed{A} or B?</think>\boxed{%s}", r"half a thought</think>\boxed{%s}",
    "I weighed all of them.\n\n**\\boxed{%s}**", r"The answer is \boxed{%s}, I think.",
)  # fmt: skip
"""Ways to box a letter."""


def _options(row: dict[str, Any]) -> dict[str, str]:
    """Return the text of each option by its letter."""
    pairs = [next(iter(option.items())) if isinstance(option, dict) else (option, "") for option in row["options"]]
    return dict(pairs)


def _others(row: dict[str, Any]) -> list[str]:
    return [letter for letter in _options(row) if letter != row["expected_answer"]]


def oracle(row: dict[str, Any]) -> Reply:
    return f"An hour has 60 minutes, so I add the part to the whole hours.\n\n\\boxed{{{row['expected_answer']}}}"


def odd_forms(row: dict[str, Any]) -> list[Reply]:
    letter = row["expected_answer"]
    text = _options(row)[letter]
    forms: list[Reply] = [form % letter for form in BOXES]
    forms += [rf"\boxed{{{letter}: {text}}}", rf"\boxed{{{letter}) {text}}}", rf"\boxed{{\text{{{letter}. {text}}}}}"]
    forms += [rf"\boxed{{{letter.lower()}}}", rf"\boxed{{{chr(ord(letter) + 0xFEE0)}}}"]
    return [*forms, rf"First \boxed{{{_others(row)[0]}}}, but on closer inspection \boxed{{{letter}}}."]


def wrong(row: dict[str, Any]) -> list[Reply]:
    return [rf"\boxed{{{letter}}}" for letter in _others(row)]


def cheats(row: dict[str, Any]) -> list[tuple[str, Reply]]:
    letter, other = row["expected_answer"], _others(row)[0]
    return [
        ("two letters", rf"\boxed{{{letter} or {other}}}"),
        ("a letter off the menu", r"\boxed{Z}"),
        ("a negation", rf"\boxed{{\text{{not {letter}}}}}"),
        ("an unclosed box", rf"\boxed{{{letter}"),
        ("unclosed reasoning", rf"<think>\boxed{{{letter}}}"),
        ("hidden in invisible characters", f"\\boxed{{{other}\u200b, \u200b{letter}}}"),
        ("a very long box", r"\boxed{" + f"{letter} " * 20_000 + "}"),
    ]


MALFORMED = [
    ("no options", lambda row: {**row, "options": []}),
    ("a key twice", lambda row: {**row, "options": ["A", "A"]}),
    ("a key of two letters", lambda row: {**row, "options": ["AB", "C"]}),
    ("an answer that is no option", lambda row: {**row, "expected_answer": "Z"}),
    ("an unknown grading mode", lambda row: {**row, "grading_mode": "psychic"}),
    ("a broken expression", lambda row: {**row, "template_metadata": {"output_regex": "("}}),
]
