"""Write questions about the weather: `python generate.py OUT --rows 40 --seed 0`."""

import random
from typing import Any

from nemo_gym.data.generator_command import run_generator

INSTRUCTIONS = "You are a helpful personal assistant. Look up the weather before you answer."
QUESTIONS = (
    ("Going out in {} tonight. What should I wear?", "San Francisco"),
    ("Is it a day for the beach in {}?", "Lisbon"),
    ("I land in {} at six. Do I need a coat?", "Oslo"),
    ("Should I take the bicycle or the bus in {} today?", "Utrecht"),
    ("My garden is in {}. Shall I bring the plants inside?", "Kyoto"),
)
"""The five examples: a question, and the city it is about."""
CITIES = ("Lima", "Nairobi", "Hanoi", "Perth", "Quito", "Bergen", "Izmir", "Leeds", "Turin", "Malmö")
TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Tell the weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "Name of the city."}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


def row(question: str) -> dict[str, Any]:
    """Build one task: a question, and the tool to answer it with."""
    conversation = [{"role": "developer", "content": INSTRUCTIONS}, {"role": "user", "content": question}]
    return {"responses_create_params": {"input": conversation, "tools": [TOOL], "parallel_tool_calls": False}}


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return the five written questions, then the same about other cities."""
    draw = random.Random(seed)
    written = [question.format(city) for question, city in QUESTIONS]
    more = [question.format(city) for city in CITIES for question, _ in QUESTIONS]
    draw.shuffle(more)
    if count > len(written) + len(more):
        raise SystemExit(f"there are only {len(written) + len(more)} different questions; asked for {count}")
    return [row(question) for question in [*written, *more][:count]]


def main() -> None:
    run_generator(rows, __doc__)


if __name__ == "__main__":
    main()
