"""A package of verifiers: tools, one of which raises, and arguments that are no JSON."""

from zlib import crc32

import verifiers as vf
from datasets import Dataset


def look(shelf: int) -> str:
    """Look at a shelf.

    Args:
        shelf: The number of the shelf.
    """
    if shelf == 2:
        raise ValueError("shelf 2 is empty")
    return f"On shelf {shelf} is the number {shelf * 11}."


def add(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second


def policy(text: str, number: int):
    """Choose calls by the last text and the turn; in the end, say a number."""
    value = crc32(f"{text}:{number}".encode())
    calls = [
        {"name": "look", "arguments": {"shelf": value % 4}},
        {"name": "add", "arguments": {"first": number, "second": 2}},
    ]
    if number == 0:
        return {"tool_calls": calls}
    if number == 1:
        choices = [
            [calls[0]],
            [{"name": "look", "arguments": "{not json"}],
            [{"name": "burn", "arguments": {}}],
            [calls[1]],
        ]
        return {"text": "so", "tool_calls": choices[value % 4]}
    return f"It is {value % 3}."


def load_environment() -> vf.Environment:
    rows = [{"question": f"What is the number of {number}?", "answer": str(number % 3)} for number in range(24)]

    def says_answer(completion, answer) -> float:
        return float(completion[-1]["content"] == f"It is {answer}.")

    return vf.ToolEnv(
        dataset=Dataset.from_list(rows), tools=[look, add], rubric=vf.Rubric(funcs=[says_answer]), max_turns=5
    )
