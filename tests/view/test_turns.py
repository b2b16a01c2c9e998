"""Turns of a rollout: as recorded, else as the items suggest; what is not recorded is absent."""

from typing import Any

from nemo_gym.view.token_sequence import read_sequence, sequence_facts
from nemo_gym.view.tool_list import list_tools
from nemo_gym.view.turns import event_turns, read_turns, timeline, turn_facts
from tests.view.records import record


def with_turns(**more: Any) -> dict[str, Any]:
    """A record with tokens and seconds of two turns."""
    turns = {"_ng_turns": [[2, 100, 40, 20, 15], [1, 130, 0, 8, 0]], "_ng_turn_seconds": [[2.0, 0.5], [1.0, 0.0]]}
    phases = {"queue": 0.1, "seed_session": 0.2, "model": 3.0, "tools": 0.5, "verify": 0.4, "agent": 0.01}
    return record(0, 0, 1.0, **{**turns, "_ng_phases": phases, **more})


def test_recorded_turns_have_tokens_and_seconds() -> None:
    """Which turn was slow, and which one was expensive."""
    first, second = turn_facts(with_turns(), 1)

    assert (first["turn"], first["event"], first["tools"]) == (1, 1, ["add"])
    assert first["tokens"] == {"input": 100, "cached": 40, "output": 20, "reasoning": 15}
    assert (first["seconds"], first["tool_seconds"], first["slowest"]) == (2.0, 0.5, True)
    assert (second["event"], second["seconds"], second["slowest"]) == (4, 1.0, False)
    assert second["title"] == "It is 4." and "tool_seconds" not in second


def test_the_timeline_names_the_turns() -> None:
    """Where the time went, in the order in which it went."""
    parts = [(part["phase"], part.get("turn"), part["seconds"]) for part in timeline(with_turns())]

    assert parts == [
        ("queue", None, 0.1), ("seed_session", None, 0.2), ("model", 1, 2.0), ("tools", 1, 0.5), ("model", 2, 1.0),
        ("verify", None, 0.4), ("agent", None, 0.01),
    ]  # fmt: skip
    assert timeline(record()) == []


def test_two_turns_without_a_tool_between_them_stay_two() -> None:
    """An agent may ask the model again; the items alone look like one turn."""
    items = [{"type": "reasoning", "summary": []}, {"type": "message", "role": "assistant", "content": "done"}]
    silent = record(_ng_turns=[[1], [1]])
    silent["response"]["output"] = items

    assert [turn.items for turn in read_turns(silent)] == [[0], [1]]
    assert [turn.items for turn in read_turns({**silent, "_ng_turns": None})] == [[0, 1]]


def test_records_of_other_tools_and_damaged_ones_are_read() -> None:
    """A wrong count must not put a tool result into the wrong turn."""
    for turns in (3, [[5, 1]], [["x"]], [[1], [1], [1], [1]], [[True]], [[]], [[-1, 2]], "text"):
        made = with_turns(_ng_turns=turns, _ng_turn_seconds=[["x"], 3])
        assert event_turns(made) == {0: 1, 1: 1, 2: 1, 3: 2}, turns
        assert all("seconds" not in turn for turn in turn_facts(made, 1))


def test_outputs_belong_to_the_turn_of_their_call() -> None:
    """Outputs of parallel calls may come in any order."""
    made = record()
    made["response"]["output"] = [
        {"type": "function_call", "name": "a", "call_id": "1", "arguments": "{}"},
        {"type": "function_call", "name": "b", "call_id": "2", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "2", "output": "y"},
        {"type": "function_call_output", "call_id": "1", "output": "x"},
        {"type": "message", "role": "assistant", "content": "end"},
    ]

    assert event_turns(made) == {0: 1, 1: 1, 2: 1, 3: 1, 4: 2}


def tokens(prompt: list[int], generated: list[int], log_probs: list[Any]) -> dict[str, Any]:
    ids = {"prompt_token_ids": prompt, "generation_token_ids": generated, "generation_log_probs": log_probs}
    return {"type": "message", "role": "assistant", "content": "x", **ids}


def test_the_sequence_masks_what_is_not_trained_on() -> None:
    """A trainer learns from generated tokens only; tool outputs between them are masked."""
    made = record()
    made["response"]["output"] = [tokens([1, 2], [3, 4], [-0.1, -2.0]), tokens([1, 2, 3, 4, 5], [6], [-0.5])]

    facts = sequence_facts(made, 1, 0, 100)

    assert facts["ids"] == [1, 2, 3, 4, 5, 6]
    assert facts["mask"] == [0, 0, 1, 1, 0, 1]
    assert facts["log_probs"] == [None, None, -0.1, -2.0, None, -0.5]
    assert [(one["kind"], one["start"], one["count"]) for one in facts["segments"]] == [
        ("prompt", 0, 2), ("turn", 2, 2), ("tool", 4, 1), ("turn", 5, 1),
    ]  # fmt: skip
    assert (facts["total"], facts["trained"], facts["contiguous"]) == (6, 3, True)
    assert facts["surprising"][0] == {"position": 3, "id": 4, "log_prob": -2.0, "turn": 1}
    assert sequence_facts(made, 1, 4, 1)["ids"] == [5]


def test_a_rewritten_context_is_not_contiguous() -> None:
    """An agent that changes earlier messages breaks the sequence; a trainer must know."""
    made = record()
    made["response"]["output"] = [tokens([1, 2], [3], [-0.1]), tokens([9, 9], [4], ["NaN"])]

    sequence = read_sequence(made, 1)

    assert not sequence.is_contiguous
    assert sequence.ids == [1, 2, 3, 9, 9, 4] and sequence.log_probs[-1] is None


def test_tools_are_listed_with_their_parameters() -> None:
    """Many failures are a schema that the model misreads."""
    made = record()
    schema = {
        "type": "object",
        "required": ["a"],
        "properties": {
            "a": {"type": "integer", "minimum": 1, "maximum": 9, "description": "first"},
            "b": {"type": "array", "items": {"type": "string"}, "default": []},
            "c": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "d": {"enum": ["x", "y"]},
            "e": True,
        },
    }
    made["responses_create_params"]["tools"] = [{"type": "function", "name": "add", "parameters": schema}, 7]

    (tool,) = list_tools(made)

    assert (tool["name"], tool["calls"]) == ("add", 1)
    assert [one["type"] for one in tool["parameters"]] == [
        "integer, 1 to 9",
        "array of string",
        "string | null",
        "x | y",
        "any",
    ]
    assert [one["required"] for one in tool["parameters"]] == [True, False, False, False, False]
    assert tool["parameters"][1]["default"] == []
