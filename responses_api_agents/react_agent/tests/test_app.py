"""Episodes in the text protocol, with a scripted model and a real environment in this process."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from nemo_gym.training.samples import rollout_of
from responses_api_agents.react_agent.app import ReactAgent
from responses_api_agents.react_agent.protocol import parse_text
from responses_api_agents.simple_agent.tests.bench import Bench, tool_texts, types, unmount_servers
from responses_api_models.scripted_model.script import Scene

TOOL = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
ACTION = 'Thought: I need the weather.\nAction: weather\nAction Input: {"city": "Oslo"}'
FINAL = "Thought: I know it.\nFinal Answer: Take a coat."
ROW = {"responses_create_params": {"input": "What to wear?", "tools": [TOOL]}}
_scenes: list[Scene] = []


@pytest.fixture(autouse=True)
def _unmount_servers() -> Iterator[None]:
    _scenes.clear()
    yield
    unmount_servers()


def play(scene: Scene) -> str:
    """Use the weather tool once in the text protocol, and remember what the model saw."""
    _scenes.append(scene)
    return FINAL if any("Observation: " in str(item) for item in scene.conversation[1:]) else ACTION


def test_an_action_in_text_is_a_call_of_the_tool_and_its_output_an_observation() -> None:
    """Verifiers read function calls and answers; they must not know the protocol."""
    bench = Bench(f"{__name__}:play", agent=ReactAgent)

    result = bench.run(**ROW)

    response = result["response"]
    assert types(response) == ["reasoning", "function_call", "function_call_output", "reasoning", "message"]
    assert response["output"][1]["name"] == "weather"
    assert json.loads(tool_texts(response)[0]) == {"city": "Oslo", "sky": "grey"}
    assert response["output"][-1]["content"][0]["text"] == "Take a coat."
    assert result["reward"] == 1.0


def test_the_model_gets_no_tools_and_sees_its_own_text_again() -> None:
    """A model without tool calling refuses requests with tools, and a changed text breaks the prompt for training."""
    Bench(f"{__name__}:play", agent=ReactAgent).run(**ROW)

    assert [scene.tools for scene in _scenes] == [[], []]
    system, question, action, observation = _scenes[1].conversation
    assert "weather: The weather in a city." in system["content"]
    assert question["content"] == "What to wear?"
    assert action["content"][0]["text"] == ACTION
    assert observation["content"].startswith('Observation: {"city"')


def test_the_explanation_joins_the_system_message_of_the_row() -> None:
    """Many chat templates allow one system message."""
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What to wear?"}]

    Bench(f"{__name__}:play", agent=ReactAgent).run(responses_create_params={"input": prompt, "tools": [TOOL]})

    assert [item["role"] for item in _scenes[0].conversation] == ["system", "user"]
    assert _scenes[0].conversation[0]["content"].startswith("Be brief.\n\nYou can use these tools:")


def test_the_tokens_of_a_text_stay_with_its_call_and_form_one_sample() -> None:
    """The text protocol must train as any other agent: each prompt continues the one before."""
    bench = Bench([{"text": ACTION}, {"text": FINAL}], agent=ReactAgent, token_ids=True)

    result = bench.run(**ROW, _ng_task_index=0, _ng_rollout_index=0)

    rollout = rollout_of(result)
    assert [len(rollout.samples), rollout.breaks, rollout.trainable] == [1, 0, True]
    assert len(rollout.samples[0].spans) == 2


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("Action: weather\nAction Input: not json", "cannot be run"),
        ("Action: volcano\nAction Input: {}", "no tool named 'volcano'"),
        ("Action: verify\nAction Input: {}", "no tool named 'verify'"),
    ],
)
def test_mistakes_of_the_model_are_observations(text: str, error: str) -> None:
    """The model can correct itself, and reaches no route that ends or grades the episode."""
    result = Bench([{"text": text}, {"text": FINAL}], agent=ReactAgent).run(**ROW)

    assert error in tool_texts(result["response"])[0]
    assert result["reward"] == 0.0


def test_an_invented_observation_is_dropped() -> None:
    """Models continue the pattern; a rollout must rest on the outputs of real tools."""
    invented = f"{ACTION}\nObservation: sunny\nThought: fine\nFinal Answer: shorts"

    result = Bench([{"text": invented}, {"text": FINAL}], agent=ReactAgent).run(**ROW)

    assert "sunny" not in json.dumps(result["response"])
    assert result["reward"] == 1.0


def test_rows_without_tools_are_sent_unchanged() -> None:
    """A question without tools needs no protocol."""
    response = Bench([{"text": "Final Answer: 4"}], agent=ReactAgent).respond()

    assert response["output"][0]["content"][0]["text"] == "Final Answer: 4"


@pytest.mark.parametrize(
    ("text", "tool", "arguments", "answer"),
    [
        ('Action: a\nAction Input: {"x": 1} and more', "a", '{"x": 1}', ""),
        ('Action: a\nAction Input:\n```json\n{"x": 1}\n```', "a", '{"x": 1}', ""),
        ("Action: a", "a", "", ""),
        ("Action: `a`\nAction Input: {}", "a", "{}", ""),
        ("Action: `a` \t\r\nAction Input: ```json\r\n{}\r\n```", "a", "{}", ""),
        ("Action: a\nAction Input: ```json\n{}", "a", "```json\n{}", ""),
        ("Final Answer: 4\nAction: a", None, "", "4\nAction: a"),
        ("Just four.", None, "", "Just four."),
    ],
)
def test_forms_that_models_write(text: str, tool: Any, arguments: str, answer: str) -> None:
    """A call must not be lost because of a fence or a word after it."""
    parsed = parse_text(text)

    assert (parsed.tool, parsed.arguments, parsed.answer) == (tool, arguments, answer)


@pytest.mark.parametrize("blank", [" ", "\t", "\n", "\r", "`", " `", "\n "])
@pytest.mark.parametrize(
    "before", ["Action:", "Action: a", "Thought:", "Final Answer:", "Action: a\nAction Input:", "Final", ""]
)
def test_long_runs_of_blanks_take_linear_time(before: str, blank: str) -> None:
    """The event loop serves all rollouts; a model that repeats a character must not stop it for minutes."""
    began = time.process_time()

    parse_text(before + blank * 100_000 + "x")
    parse_text(f"Action: a\nAction Input: ```json\n{blank * 100_000}x")

    assert time.process_time() - began < 5


def test_arguments_that_nest_too_deep_are_an_answer_for_the_model() -> None:
    """A text of a model must never be an error of the agent."""
    assert parse_text("Action: a\nAction Input: " + "[" * 100_000).arguments == "[" * 100_000
