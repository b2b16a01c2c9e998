"""Right, odd, wrong and cheating replies for `gym env audit multineedle`."""

import json
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]
Pairs = list[tuple[str, str]]


def expected_pairs(row: Row) -> Pairs:
    return [(needle["name"], needle["value"]) for needle in row["needles"]]


def lines(pairs: Pairs) -> str:
    return "\n".join(f"{name}: {value}" for name, value in pairs)


def oracle(row: Row) -> str:
    return lines(expected_pairs(row))


FORMS: list[Callable[[Pairs], str]] = [
    lambda pairs: lines(pairs) + "\n",
    lambda pairs: lines(pairs[::-1]),
    lambda pairs: "Here is what the text says:\n\n" + lines(pairs) + "\n\nLet me know if you need more.",
    lambda pairs: "<think>Was it 1111111?\nLisbon: 1</think>" + lines(pairs),
    lambda pairs: "I looked for " + ", ".join(name for name, _ in pairs) + " in the text.\n" + lines(pairs),
    lambda pairs: f"{pairs[0][0]} is mentioned first.\n" + lines(pairs),
    lambda pairs: lines(pairs) + "\n\nOnce more:\n" + lines(pairs),
    lambda pairs: "\n".join(f"- {name}: {value}" for name, value in pairs),
    lambda pairs: "\n".join(f"* **{name}**: {value}" for name, value in pairs),
    lambda pairs: "\n".join(f"**{name}:** `{value}`" for name, value in pairs),
    lambda pairs: "\n".join(f"{number}. {name}: {value}" for number, (name, value) in enumerate(pairs, start=1)),
    lambda pairs: "\n".join(f"{number}) {name} = {value}" for number, (name, value) in enumerate(pairs, start=1)),
    lambda pairs: "\n".join(f"{name} -> {value}" for name, value in pairs),
    lambda pairs: "\n".join(f"{name} – {value}" for name, value in pairs),
    lambda pairs: "\n".join(f"{name}\t{value}" for name, value in pairs),
    lambda pairs: "\n".join(f"{name},{value}" for name, value in pairs),
    lambda pairs: "| place | value |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in pairs),
    lambda pairs: json.dumps(dict(pairs)),
    lambda pairs: "```json\n" + json.dumps(dict(pairs), indent=2) + "\n```",
    lambda pairs: "```\n" + lines(pairs) + "\n```",
    lambda pairs: "; ".join(f"{name}: {value}" for name, value in pairs),
    lambda pairs: ", ".join(f"{name}: {value}" for name, value in pairs) + ".",
    lambda pairs: ". ".join(f"{name} is {value}" for name, value in pairs) + ".",
    lambda pairs: lines(pairs).upper(),
    lambda pairs: "\n".join(f"“{name}”: “{value}”" for name, value in pairs),
    lambda pairs: "\n".join(f"{name}:\u00a0{value}\u200b" for name, value in pairs),
    lambda pairs: "\r\n".join(f"{name} : {value}." for name, value in pairs),
    lambda pairs: "\n".join(f"{name}: {group_digits(value)}" for name, value in pairs),
    lambda pairs: "\n".join(f"> {name}: {value}" for name, value in pairs),
    lambda pairs: "\n".join(f"### {name}: {value}" for name, value in pairs),
]


def group_digits(value: str) -> str:
    """Write a number with thousands separators, anything else with hyphens."""
    return f"{int(value):,}" if value.isdigit() else value.replace(" ", "-")


def odd_forms(row: Row) -> list[str]:
    return [form(expected_pairs(row)) for form in FORMS]


def wrong(row: Row) -> list[str]:
    pairs = expected_pairs(row)
    (name, value), rest = pairs[0], pairs[1:]
    reversed_value = value[::-1] if value[::-1] != value else value + "0"
    shifted = [(name, other) for (name, _), (_, other) in zip(pairs, [*rest, pairs[0]], strict=True)]
    return [
        lines(rest),
        lines([(name, reversed_value), *rest]),
        lines([(name, value[:-1]), *rest]),
        lines([(name, f"{value} or {reversed_value}"), *rest]),
        lines([(name, f"not {value}"), *rest]),
        lines(shifted),
        "\n".join(value for _, value in pairs),
        "\n".join(f"{number}: {value}" for number, (_, value) in enumerate(pairs)),
        f"<think>{lines(pairs)}",
        f"<think>{lines(pairs)}</think>I found all of them.",
    ]


def cheats(row: Row) -> list[tuple[str, str]]:
    pairs = expected_pairs(row)
    text = row["responses_create_params"]["input"][0]["content"]
    values = [value for _, value in pairs]
    numbers = [word for word in text.replace(".", " ").split() if word.isdigit()]
    return [
        ("the text again", text),
        ("the text again, one sentence per line", text.replace(". ", ".\n")),
        ("every place in the text", lines(pairs + [(name, "1234567") for name in row["distractors"]])),
        ("two values for each", lines([*pairs, *((name, "7654321") for name, _ in pairs)])),
        (
            "every number for every place",
            lines([(name, n) for name, _ in pairs for n in values + numbers]),
        ),
        ("all values behind each name", lines([(name, " ".join(values)) for name, _ in pairs])),
        ("only names", lines([(name, "") for name, _ in pairs])),
    ]


def _without(field: str) -> Callable[[Row], Row]:
    return lambda row: {key: value for key, value in row.items() if key != field}


MALFORMED: list[tuple[str, Callable[[Row], Row]]] = [
    ("no needles", _without("needles")),
    ("needles that are none", lambda row: {**row, "needles": []}),
    ("a needle without a value", lambda row: {**row, "needles": [{"name": "Lisbon"}]}),
    ("an empty value", lambda row: {**row, "needles": [{"name": "Lisbon", "value": " ?"}]}),
    ("an empty name", lambda row: {**row, "needles": [{"name": "", "value": "1"}]}),
    ("a needle twice", lambda row: {**row, "needles": row["needles"] * 2}),
    ("a needle that is a distractor", lambda row: {**row, "distractors": [row["needles"][0]["name"].upper()]}),
    ("a depth below the text", lambda row: {**row, "needles": [{"name": "Lisbon", "value": "1", "depth": 2}]}),
]
