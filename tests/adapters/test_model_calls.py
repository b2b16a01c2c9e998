"""A package whose own loop calls the model plays turn by turn, and only a conversation that grows can be a rollout."""

import asyncio
from typing import Any

import pytest

from nemo_gym.adapters.episodes import PeerTurn, episode_function
from nemo_gym.adapters.model_calls import CallingEpisode, assistant_message, function_tool, input_items

TOOL = function_tool("look", "Look.", {"properties": {"shelf": {"type": "integer"}}})
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


class Dialogue(CallingEpisode):
    """A package with a system prompt, a tool and two user messages; `row["change"]` makes it misbehave."""

    async def play(self, row):
        await asyncio.sleep(0)  # a package waits for other things, too
        if row.get("change") == "silent":
            return PeerTurn(reward=1.0)
        messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
        messages.append({"role": "user", "content": [{"type": "text", "text": "Which number?"}, IMAGE]})
        reply = await self.ask(messages, [TOOL])
        messages.append(assistant_message(reply))
        messages += [{"role": "tool", "tool_call_id": call["call_id"], "content": "11"} for call in reply.calls]
        if row.get("change") == "history":
            messages[1] = {"role": "user", "content": "Another question"}
        if row.get("change") == "system":
            messages.append({"role": "system", "content": "Be long."})
        if row.get("change") == "raise":
            raise KeyError("lost number")
        messages += [{"role": "user", "content": "Well?"}, {"role": "user", "content": "Say it."}]
        reply = await self.ask(messages, [TOOL])
        grade = await self.ask([{"role": "user", "content": f"Grade {reply.text}"}], is_grader=True)
        messages.append(assistant_message(reply))
        return PeerTurn(reward=float(grade.text), messages=[*messages, {"role": "user", "content": "Thanks."}])


def start(**row: Any):
    play = episode_function(Dialogue)
    return play, play({"operation": "start", "row": {"seed": 1, **row}})


def step(play, text: str = "", *calls: dict[str, Any]) -> dict[str, Any]:
    return play({"operation": "step", "action": {"text": text, "calls": list(calls)}})


CALL = {"name": "look", "arguments": None, "text": "{not json", "call_id": "c1"}


def test_calls_of_the_package_are_turns_of_the_policy_and_of_the_grader():
    """System prompt, image, tools, outputs, several messages: all must reach the model once, in order."""
    play, opening = start()
    assert [item["role"] for item in opening["messages"]] == ["system", "user"]
    assert [part["type"] for part in opening["messages"][1]["content"]] == ["input_text", "input_image"]
    assert (opening["tools"], opening["player"], opening["done"]) == ([TOOL], 0, False)

    second = step(play, "I look.", CALL)
    assert (second["content"], second["outputs"]) == ("Well?\n\nSay it.", {"c1": "11"})

    graded = step(play, "11")
    assert (graded["player"], graded["messages"][0]["content"]) == (1, "Grade 11")

    last = step(play, "0.5")
    assert (last["reward"], last["done"], last["ending"], last["content"]) == (0.5, True, "finished", "Thanks.")
    play({"operation": "close"})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("history", "only a conversation that grows"),
        ("system", "a message of the role system"),
        ("raise", "lost number"),
    ],
)
def test_what_cannot_be_a_rollout_is_an_error(change, problem):
    """A training run must never see turns that the package's model did not see."""
    play, _ = start(change=change)
    with pytest.raises((RuntimeError, KeyError), match=problem):
        step(play, "I look.", CALL)


def test_an_episode_without_a_call_of_the_model_is_an_error():
    """Its reward says nothing about the policy."""
    with pytest.raises(RuntimeError, match="without a call of the model"):
        start(change="silent")


def test_an_episode_that_is_not_over_can_be_closed():
    """The limit of turns ends a rollout while the package waits for a reply."""
    play, _ = start()
    assert play({"operation": "close"}) == {}


def test_examples_with_tool_calls_are_items_of_the_input():
    """Packages show examples of tool calls in their prompts."""
    reply = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [reply]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "11"}]},
    ]
    call, output = input_items(messages)
    assert call == {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    assert output == {"type": "function_call_output", "call_id": "c1", "output": "11"}


def test_other_content_is_an_error():
    """A model that does not hear a sound cannot be judged by its answer."""
    with pytest.raises(TypeError, match="input_audio"):
        list(input_items([{"role": "user", "content": [{"type": "input_audio"}]}]))
