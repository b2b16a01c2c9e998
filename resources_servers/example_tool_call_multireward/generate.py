"""Write rows of conversions: `python generate.py OUT --rows 40 --seed 0`."""

import random
from typing import Any

from nemo_gym.data.generator_command import run_generator

UNITS = {
    "convert_length": ["metre", "kilometre", "mile", "foot"],
    "convert_mass": ["gram", "kilogram", "pound", "ounce"],
    "convert_temperature": ["kelvin", "celsius", "fahrenheit"],
}
PAIRS = {
    "convert_length": [("mile", "kilometre"), ("foot", "metre")],
    "convert_mass": [("pound", "kilogram"), ("ounce", "gram")],
    "convert_temperature": [("fahrenheit", "celsius"), ("celsius", "kelvin"), ("kelvin", "fahrenheit")],
}
"""The conversions of the tasks, in both directions: units of similar size, so that no result rounds to zero."""
VALUES = range(20, 100)
IN_WORDS = {
    "metre": "metres",
    "kilometre": "kilometres",
    "mile": "miles",
    "foot": "feet",
    "gram": "grams",
    "kilogram": "kilograms",
    "pound": "pounds",
    "ounce": "ounces",
    "kelvin": "kelvin",
    "celsius": "degrees Celsius",
    "fahrenheit": "degrees Fahrenheit",
}
DESCRIPTIONS = {
    "convert_length": "Convert a length or distance.",
    "convert_mass": "Convert a mass or weight.",
    "convert_temperature": "Convert a temperature.",
}
INSTRUCTIONS = "Convert with one call of the right tool, then tell the result in a sentence that ends in the number."


def tool(name: str) -> dict[str, Any]:
    unit = {"type": "string", "enum": UNITS[name]}
    parameters = {
        "type": "object",
        "properties": {"value": {"type": "number"}, "from_unit": unit, "to_unit": unit},
        "required": ["value", "from_unit", "to_unit"],
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "name": name,
        "description": DESCRIPTIONS[name],
        "parameters": parameters,
        "strict": True,
    }


def row(name: str, value: int, from_unit: str, to_unit: str) -> dict[str, Any]:
    """Build one task: a question in words, and the call that answers it."""
    conversation = [
        {"role": "developer", "content": INSTRUCTIONS},
        {"role": "user", "content": f"What is {value} {IN_WORDS[from_unit]} in {IN_WORDS[to_unit]}?"},
    ]
    params = {"input": conversation, "tools": [tool(one) for one in UNITS], "parallel_tool_calls": False}
    arguments = {"value": value, "from_unit": from_unit, "to_unit": to_unit}
    return {"responses_create_params": params, "expected_tool": name, "expected_arguments": arguments}


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return `count` tasks, the tools in turn."""
    draw = random.Random(seed)
    names = list(UNITS)
    tasks = []
    for number in range(count):
        name = names[number % len(names)]
        from_unit, to_unit = draw.sample(draw.choice(PAIRS[name]), 2)
        tasks.append(row(name, draw.choice(VALUES), from_unit, to_unit))
    return tasks


def main() -> None:
    run_generator(rows, __doc__)


if __name__ == "__main__":
    main()
