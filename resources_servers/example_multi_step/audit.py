"""Right, odd, wrong and cheating replies for `gym env audit example_multi_step`."""

import json
from typing import Any

from nemo_gym.authoring.model_replies import Reply, message, tool_call
from nemo_gym.authoring.model_replies import play_calls as act  # noqa: F401 - part of the interface
from resources_servers.example_multi_step.app import LOOKUP, SUBMIT, value_of

Items = list[dict[str, Any]]
MOST_FOR_WRONG = 0.0


def _lookup(word: str, *, has_answer: bool = True) -> Items:
    answer = {"synonym": word, "synonym_value": value_of(word)} if has_answer else None
    return tool_call(LOOKUP, {"synonym": word}, answer, call_id=f"call_{word}")


def _lookups(words: list[str]) -> Items:
    return [item for word in words for item in _lookup(word)]


def _submit(values: Any, number: int = 0) -> Items:
    return tool_call(SUBMIT, {"synonym_values": values}, {"success": True}, call_id=f"call_submit_{number}")


def _values(row: dict[str, Any]) -> list[int]:
    return [value_of(word) for word in row["expected_synonyms"]]


def oracle(row: dict[str, Any]) -> Reply:
    return [*_lookups(row["expected_synonyms"]), *_submit(_values(row)), message("I have submitted all values.")]


def odd_forms(row: dict[str, Any]) -> list[Reply]:
    words, values = row["expected_synonyms"], _values(row)
    submit = _submit(values)
    together = [item for word in words for item in _lookup(word, has_answer=False)]
    answers = [_lookup(word)[1] for word in words]
    return [
        [*_lookups(words), *submit],
        [*_lookups(words), *submit, message("")],
        [*_lookups(list(reversed(words))), *submit],
        [*_lookups([*words, "other"]), *submit],
        [*_lookups([*words, words[0]]), *submit],
        [*_lookups([f" {word} " for word in words]), *submit],
        [*together, *answers, *submit],
        [message("First I look them up."), *_lookups(words), message("Now I submit."), *submit],
        [
            {**item, "name": f"mcp__words__{item['name']}"} if "name" in item else item
            for item in [*_lookups(words), *submit]
        ],
        [*_lookups(words), {**submit[0], "arguments": json.dumps({"synonym_values": values}, indent=2)}],
        [*_lookups(words), *submit, *_lookups(words[:1])],
    ]


def wrong(row: dict[str, Any]) -> list[Reply]:
    words, values = row["expected_synonyms"], _values(row)
    lookups = _lookups(words)
    return [
        [*lookups, *_submit(list(reversed(values)))],
        [*lookups, *_submit(values[:-1])],
        [*lookups, *_submit([*values, 1000])],
        [*lookups, *_submit([values[0] + 1, *values[1:]])],
        [*lookups, *_submit([str(value) for value in values])],
        [*_lookups(uppercase := [word.upper() for word in words]), *_submit([value_of(word) for word in uppercase])],
        [*_lookups(words[1:]), *_submit(values)],
        [*lookups, *_submit(values), *_submit(values, 1)],
        [*lookups, message(f"The values are {values}.")],
        _submit(values),
    ]


def cheats(row: dict[str, Any]) -> list[tuple[str, Reply]]:
    words, values = row["expected_synonyms"], _values(row)
    unanswered = [item for word in words for item in _lookup(word, has_answer=False)]
    answers = [_lookup(word)[1] for word in words]
    return [
        ("submitted before the values came back", [*unanswered, *_submit(values), *answers]),
        ("answers to calls that were not made", [*answers, *_submit(values)]),
        ("every value", [*_lookups(words), *_submit(list(range(1000, 1200)))]),
        ("several tries", [*_lookups(words), *_submit([0]), *_submit(values, 1)]),
        ("a submission in words", [*_lookups(words), message(f"{SUBMIT}({values})")]),
        ("arguments cut off", [*_lookups(words), {**_submit(values)[0], "arguments": f'{{"synonym_values": {values}'}]),
        ("more arguments", [*_lookups(words), *tool_call(SUBMIT, {"synonym_values": values, "reward": 1})]),
    ]


MALFORMED = [
    ("no synonyms", lambda row: {**row, "expected_synonyms": []}),
    ("synonyms that are numbers", lambda row: {**row, "expected_synonyms": [1, 2]}),
]
