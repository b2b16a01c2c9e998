"""Right, odd, wrong and cheating replies for `gym env audit quiz`."""

from typing import Any

from nemo_gym.authoring.model_replies import Reply

FORMS = (
    "Answer: {}", "answer: {}", "ANSWER: {}", "**Answer: {}**", "**Answer:** {}", "Answer: ({})", "Answer: {}.",
    "Answer: **{}**", "The answer is {}.", "The correct answer is ({}).", "\\boxed{{{}}}", "$\\boxed{{\\text{{{}}}}}$",
    "{}", "({})", "{}.", "I choose {}", "Final answer: {}", "<think>Perhaps A or B.</think>Answer: {}",
    "It is not obvious.\n\nAnswer: {}", "Answer:\n{}", "*Answer*: {}", "Option {}",
)  # fmt: skip


def oracle(row: dict[str, Any]) -> Reply:
    return f"I have thought about all four.\n\nAnswer: {row['expected_answer']}"


def odd_forms(row: dict[str, Any]) -> list[Reply]:
    letter = row["expected_answer"]
    text = row["options"][letter]
    forms = [form.format(letter) for form in FORMS]
    return [
        *forms,
        f"Answer: {letter}) {text}",
        f"Answer: {letter}. {text}",
        f"Answer: {text}",
        f"Answer: {letter.lower()}",
    ]


def _others(row: dict[str, Any]) -> list[str]:
    return [letter for letter in row["options"] if letter != row["expected_answer"]]


def wrong(row: dict[str, Any]) -> list[Reply]:
    letters: list[Reply] = [f"Answer: {letter}" for letter in _others(row)]
    return [*letters, *(f"Answer: {row['options'][letter]}" for letter in _others(row))]


def cheats(row: dict[str, Any]) -> list[tuple[str, Reply]]:
    letter, other = row["expected_answer"], _others(row)[0]
    return [
        ("two letters", f"Answer: {letter} or {other}"),
        ("a letter off the menu", "Answer: X"),
        ("a negation", f"Answer: not {letter}"),
        ("no letter behind the label", "Answer:"),
        ("unclosed reasoning", f"<think>Answer: {letter}"),
        ("two answers", f"Answer: {letter}, {other}"),
    ]


MALFORMED = [("options that are no texts", lambda row: {**row, "options": {"A": 1, "B": {}}})]
