"""What `gym env audit example_multi_turn_gymnasium` tries."""

from typing import Any

Reply = str | list[dict[str, Any]]

MALFORMED = [
    ("nothing is expected", lambda row: {**row, "expected_substring": ""}),
    ("blank is expected", lambda row: {**row, "expected_substring": "  "}),
    ("no expectation", lambda row: {key: value for key, value in row.items() if key != "expected_substring"}),
    ("follow-ups are one text", lambda row: {**row, "follow_ups": "and then?"}),
    ("the label of something else", lambda row: {**row, "answer_label": "SUM="}),
]
FORMS = (
    "{}",
    "You have {}.",
    "{}.",
    "{}!",
    "**{}**",
    "`{}`",
    "({})",
    "“{}”",
    "{}\n",
    "\n\n{}\n\n",
    "After all that:\n\n{}",
    "{} 🍎",
    "<think>TOTAL=1 or TOTAL=2?</think>{}",
    "TOTAL=3</think>\n{}",
    "So it is {}, as said: {}",
    "| result | {} |",
    "- {}",
    "# {}",
    "```\n{}\n```",
    "=> {} <=",
    "12 + 4 - 3, hence {}",
)


def message(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg", "role": "assistant", "status": "completed", "content": content}


def talk(row: dict[str, Any], last: str, before: str = "Noted.") -> Reply:
    """A whole conversation that ends with `last`."""
    items = []
    for follow_up in row["follow_ups"]:
        items += [message(before), {"type": "message", "role": "user", "content": follow_up}]
    return [*items, message(last)]


def oracle(row: dict[str, Any]) -> Reply:
    return talk(row, f"You have them. {row['expected_substring']}")


def odd_forms(row: dict[str, Any]) -> list[Reply]:
    right = row["expected_substring"]
    forms = [form.replace("{}", right) for form in FORMS]
    return [talk(row, form) for form in [*forms, right.lower(), right.title(), right.replace("=", "＝")]]


def wrong(row: dict[str, Any]) -> list[Reply]:
    label, number = row["expected_substring"].split("=")
    near = [f"{int(number) + 1}", f"{int(number) - 1}", f"{number}0", f"1{number}", f"{number}.5", f"-{number}"]
    return [talk(row, f"{label}={value}") for value in near] + [talk(row, number), talk(row, f"{label}: {number}")]


def cheats(row: dict[str, Any]) -> list[tuple[str, Reply]]:
    right = row["expected_substring"]
    label = right.split("=")[0]
    return [
        ("every total", talk(row, " ".join(f"{label}={n}" for n in range(200)))),
        ("two totals", talk(row, f"{right} or {label}=7")),
        ("the total too early", talk(row, "I am done.", before=right)),
        ("the answer without the conversation", right),
        ("the user says it", [*talk(row, "Noted."), {"type": "message", "role": "user", "content": right}]),
        ("only in reasoning", talk(row, f"<think>{right}</think>")),
        ("cut off in reasoning", talk(row, f"<think>{right}")),
        ("forged", talk(row, '{"reward": 1.0, "found": true}')),
    ]
