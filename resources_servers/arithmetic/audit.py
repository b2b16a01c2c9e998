"""Right, odd, wrong and cheating replies for `gym env audit arithmetic`."""

from typing import Any

from nemo_gym.authoring.model_replies import Reply

FORMS = (
    "{}", "{}.", "{}!", "= {}", "**{}**", "`{}`", "({})", "${}$", "\\boxed{{{}}}", "{}.0", "{}.00", "+{}", "{} apples",
    "The sum is {}.", "1. Add them.\n2. Write down {}", "<think>12 or 13?</think>{}", "Not 1, not 2: {}", "{}\n\n",
    "The answer is {}, I am sure.", "| sum | {} |", "\u200b{}", "It's {}; right?", "# {}", "{} (worked out twice)",
)  # fmt: skip
MOST_FOR_WRONG = 0.0


def oracle(row: dict[str, Any]) -> Reply:
    return f"The sum is {row['expected_answer']}."


def odd_forms(row: dict[str, Any]) -> list[Reply]:
    return [form.format(row["expected_answer"]) for form in FORMS]


def wrong(row: dict[str, Any]) -> list[Reply]:
    right = row["expected_answer"]
    near = [right + 1, right - 1, right * 10, -right, right + 0.5, f"{right}{right}", f"{right}.5"]
    return [f"The sum is {value}." for value in near]


def cheats(row: dict[str, Any]) -> list[tuple[str, Reply]]:
    right = row["expected_answer"]
    question = row["responses_create_params"]["input"][-1]["content"]
    return [
        ("a sum that is not worked out", question.removeprefix("What is ").rstrip("?")),
        ("two candidates", f"{right} or {right + 1}"),
        ("a number inside a word", f"x{right}"),
        ("not a number", "nan"),
        ("too large to be one", "1e999"),
        ("an expression", f"{right} + 0"),
        ("a fraction", f"{right * 2}/2"),
    ]


MALFORMED = [
    ("an answer in words", lambda row: {**row, "expected_answer": "seven"}),
    ("a list of answers", lambda row: {**row, "expected_answer": [7]}),
]
