"""Write rows of synonym tasks: `python generate.py OUT --rows 40 --seed 0`."""

import random
from typing import Any

from nemo_gym.data.generator_command import run_generator

THESAURUS = {
    "hot": ["blazing", "torrid", "scalding"],
    "cold": ["icy", "frigid", "wintry"],
    "happy": ["glad", "cheerful", "merry", "content"],
    "sad": ["gloomy", "mournful", "downcast"],
    "big": ["huge", "vast", "immense", "giant"],
    "small": ["tiny", "minute", "little"],
    "fast": ["rapid", "swift", "brisk"],
    "slow": ["sluggish", "unhurried", "leisurely"],
    "loud": ["noisy", "deafening", "thunderous"],
    "quiet": ["silent", "hushed", "still", "muted"],
    "brave": ["bold", "fearless", "valiant"],
    "clever": ["bright", "shrewd", "astute", "canny"],
}
ENTRIES_SHOWN = 4
TOOLS = [
    {
        "type": "function",
        "name": "get_synonym_value",
        "description": "Tell the value of one synonym.",
        "parameters": {
            "type": "object",
            "properties": {"synonym": {"type": "string", "description": "The synonym."}},
            "required": ["synonym"],
            "additionalProperties": False,
        },
        "strict": True,
    },
    {
        "type": "function",
        "name": "extract_synonym_values",
        "description": "Submit the values of all synonyms, in order. Can be done once.",
        "parameters": {
            "type": "object",
            "properties": {
                "synonym_values": {
                    "type": "array",
                    "items": {"type": "integer"},
                    "description": "One value per synonym, in the order of the thesaurus.",
                }
            },
            "required": ["synonym_values"],
            "additionalProperties": False,
        },
        "strict": True,
    },
]
INSTRUCTIONS = (
    "Find the synonyms of the word you are asked about in the thesaurus. Look up the value of each with "
    "get_synonym_value. Then submit all values, in the order of the thesaurus, with one call of "
    "extract_synonym_values.\n\nThesaurus\n{entries}"
)


def row(word: str, page: list[str]) -> dict[str, Any]:
    """Build one task: a page of the thesaurus, and a word on it."""
    entries = "\n".join(f"{entry}: {', '.join(THESAURUS[entry])}" for entry in page)
    conversation = [
        {"role": "developer", "content": INSTRUCTIONS.format(entries=entries)},
        {"role": "user", "content": f"What are the values of the synonyms of '{word}'?"},
    ]
    params = {"input": conversation, "tools": TOOLS, "parallel_tool_calls": True}
    return {"responses_create_params": params, "expected_synonyms": THESAURUS[word]}


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return `count` tasks; every word of the thesaurus is used before one is repeated."""
    draw = random.Random(seed)
    tasks: list[dict[str, Any]] = []
    while len(tasks) < count:
        for word in draw.sample(list(THESAURUS), min(len(THESAURUS), count - len(tasks))):
            others = draw.sample([entry for entry in THESAURUS if entry != word], ENTRIES_SHOWN - 1)
            tasks.append(row(word, sorted([word, *others])))
    return tasks


def main() -> None:
    run_generator(rows, __doc__)


if __name__ == "__main__":
    main()
