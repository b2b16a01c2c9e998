"""Conversations of two scripted models, an agent and its user, with a real environment in this process."""

from collections.abc import Iterator
from typing import Any

import pytest

from nemo_gym.authoring.compaction import INSTRUCTION
from responses_api_agents.simple_agent.tests.bench import WEATHER, Bench, types, unmount_servers
from responses_api_agents.user_simulation_agent.app import UserSimulationAgent
from responses_api_models.scripted_model.script import Scene

USER_MODEL = {"type": "responses_api_models", "name": "second_model"}
_scenes: list[Scene] = []


@pytest.fixture(autouse=True)
def _unmount_servers() -> Iterator[None]:
    _scenes.clear()
    yield
    unmount_servers()


def play_user(scene: Scene) -> str:
    """Name the city if asked, then stop; remember what the user's model saw."""
    _scenes.append(scene)
    return "I am in Oslo." if "Which city" in str(scene.conversation[-1]) else "Thanks! ###STOP###"


def bench(script: list[dict[str, Any]] | str, **settings: Any) -> Bench:
    settings = {"user_model_server": USER_MODEL, "second_script": f"{__name__}:play_user", **settings}
    return Bench(script, agent=UserSimulationAgent, **settings)


ASK_THEN_CALL = [{"text": "Which city?"}, WEATHER, {"text": "Take a coat."}]


def texts(result: dict[str, Any], role: str) -> list[Any]:
    return [item["content"] for item in result["response"]["output"] if item.get("role") == role]


def test_the_user_answers_until_satisfied() -> None:
    """The agent must ask to solve the task, and the tools of the environment work between the messages."""
    result = bench(ASK_THEN_CALL).run(user_instructions="You are in Oslo.")

    assert types(result["response"]) == ["message", "message", "function_call", "function_call_output", "message"]
    assert texts(result, "user") == ["I am in Oslo."]
    assert result["reward"] == 1.0
    assert (result["simulated_user"]["turns"], result["simulated_user"]["is_satisfied"]) == (2, True)


def test_the_user_sees_messages_with_exchanged_roles_and_no_tools() -> None:
    """A user who sees tool outputs, or its own role as assistant's, plays another game."""
    bench(ASK_THEN_CALL).run(user_instructions="You are in Oslo.")

    assert [item["role"] for item in _scenes[1].conversation] == ["assistant", "user", "assistant", "user"]
    assert "grey" not in str(_scenes[1].conversation)
    assert _scenes[1].tools == []


def test_the_tokens_of_the_user_are_not_those_of_the_agent() -> None:
    """A trainer must not learn the user's words, and the cost of both must be known."""
    one = bench(ASK_THEN_CALL, token_ids=True).run(user_instructions="You are in Oslo.")

    trained = [item.get("role") for item in one["response"]["output"] if "generation_token_ids" in item]
    assert trained == ["assistant", None, "assistant"]
    assert one["simulated_user"]["output_tokens"] > 0


def test_both_conversations_are_recorded() -> None:
    """Every call must be accounted for, including those of the user's model."""
    result = bench(ASK_THEN_CALL).run(user_instructions="You are in Oslo.")

    root, user = result["ng_agent_observations"]["records"]
    assert (root["invocation_id"], user["invocation_id"], user["parent_invocation_id"]) == ("root", "user", "root")
    assert "You are in Oslo." in user["conversation"][0]["content"]
    assert "You are in Oslo." not in str(root["conversation"])


def test_a_row_without_a_question_begins_with_the_user() -> None:
    """Tasks of this kind give only instructions for the user."""
    prompt = [{"role": "system", "content": "You are a helpful agent."}]
    settings = {"second_script": [{"text": "Will it rain?"}, {"text": "###STOP###"}]}

    result = bench([{"text": "No."}], **settings).run(responses_create_params={"input": prompt})

    sent = result["ng_agent_observations"]["records"][0]["conversation"]
    assert [item["role"] for item in sent] == ["system", "user", "assistant"]
    assert sent[1]["content"] == "Will it rain?"


def test_the_number_of_messages_is_limited() -> None:
    """Two polite models would talk without end."""
    result = bench([{"text": "Anything else?"}], second_script=[{"text": "Yes."}], max_user_turns=3).run()

    assert len(texts(result, "user")) == 3
    assert result["simulated_user"]["is_satisfied"] is False


def test_a_silent_user_is_a_failure_and_no_reward() -> None:
    """The agent did nothing wrong, so its answer must not be scored as if the user had left."""
    world = bench([{"text": "Which city?"}], second_script=[{"reasoning": "hm"}])

    reply = world.http.post("/run", json={"responses_create_params": {"input": "What to wear?"}})

    assert reply.status_code == 500
    assert "plays the user wrote nothing" in reply.text


def play_with_summary(scene: Scene) -> dict[str, Any]:
    """Call the tool, summarize what it said if asked, and answer."""
    if scene.conversation[-1].get("content") == INSTRUCTION:
        return {"text": "Secret summary: the sky is grey."}
    if any("Secret summary" in str(item) for item in scene.conversation):
        return {"text": "Take a coat."}
    return {"text": "Which city?"} if not scene.number else WEATHER


def test_the_user_never_sees_a_summary() -> None:
    """A summary has the outputs of tools, and the user would take it for its own words."""
    world = bench(f"{__name__}:play_with_summary", compaction={"at_tokens": 1, "max_compactions": 2})

    result = world.run(user_instructions="You are in Oslo.")

    kinds = [each["kind"] for each in result["ng_agent_observations"]["records"]]
    assert "context_compaction" in kinds
    assert len(_scenes) > 1 and "Secret summary" not in str([scene.conversation for scene in _scenes])


def test_the_user_sees_the_texts_of_parts() -> None:
    """Parts of a user's message are invalid in one of an assistant, so endpoints refuse them."""
    parts = [{"type": "input_text", "text": "What to "}, {"type": "input_text", "text": "wear?"}]
    reply = [{"type": "output_text", "text": "Hm.", "annotations": []}]
    prompt = [{"role": "user", "content": parts}, {"role": "assistant", "content": reply, "type": "message"}]

    bench([{"text": "Take a coat."}]).run(responses_create_params={"input": prompt})

    seen = _scenes[0].conversation
    assert [(item["role"], item["content"]) for item in seen[:2]] == [("assistant", "What to wear?"), ("user", "Hm.")]
