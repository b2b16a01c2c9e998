"""Write tasks for a counter: `python generate.py OUT --rows 40 --seed 0`."""

import random
from typing import Any

from nemo_gym.data.generator_command import run_generator

INSTRUCTIONS = "You look after a counter. Use the tools to change and read it."
TASKS = (
    ("Please add 4, then add 5, and tell me the value.", 3, 12),
    ("Please add 7 and tell me the value.", 0, 7),
    ("Please take away 4, add 1, and tell me the value.", 10, 7),
    ("Please double the value, whatever it is, and tell me the new value.", 1, 2),
    ("Please make the value three times what it is, and tell me the new value.", 5, 15),
)
"""The five examples: the request, the initial count and the expected count."""
TOOLS = [
    {
        "type": "function",
        "name": "increment_counter",
        "description": "Add a number to the counter.",
        "parameters": {
            "type": "object",
            "properties": {"count": {"type": "integer", "description": "How much to add; may be negative."}},
            "required": ["count"],
            "additionalProperties": False,
        },
        "strict": True,
    },
    {
        "type": "function",
        "name": "get_counter_value",
        "description": "Read the counter.",
        "parameters": {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
        "strict": True,
    },
]


def row(task: str, start: int, end: int) -> dict[str, Any]:
    """Build one task, with the two tools."""
    conversation = [{"role": "developer", "content": INSTRUCTIONS}, {"role": "user", "content": task}]
    params = {"input": conversation, "tools": TOOLS, "parallel_tool_calls": False}
    return {"responses_create_params": params, "initial_count": start, "expected_count": end}


def random_task(draw: random.Random) -> tuple[str, int, int]:
    """Draw a task that doing nothing does not solve."""
    start, up, down = draw.randint(0, 20), draw.randint(2, 30), draw.randint(2, 30)
    if up == down:
        up += 1
    return f"Please add {up}, take away {down}, and tell me the value.", start, start + up - down


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return the five written tasks, then random ones."""
    draw = random.Random(seed)
    tasks = [*TASKS, *(random_task(draw) for _ in range(count))]
    return [row(*task) for task in tasks[:count]]


def main() -> None:
    run_generator(rows, __doc__)


if __name__ == "__main__":
    main()
