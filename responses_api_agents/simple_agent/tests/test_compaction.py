"""Compaction of a full context: the summary begins a new segment, and all segments are recorded."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from nemo_gym.authoring.compaction import INSTRUCTION
from nemo_gym.training.samples import rollout_of
from nemo_gym.transport import in_process
from responses_api_agents.simple_agent.tests.bench import HOST, PORTS, Bench, types, unmount_servers
from responses_api_models.openai_model.tests.endpoint import ask
from responses_api_models.scripted_model.script import Scene
from responses_api_models.vllm_model.tests.mock_engine import MockEngine, serving
from responses_api_models.vllm_model.tests.support import model

SUMMARY = "Oslo is grey."
_scenes: list[Scene] = []


@pytest.fixture(autouse=True)
def _unmount_servers() -> Iterator[None]:
    _scenes.clear()
    yield
    unmount_servers()


def play(scene: Scene) -> dict[str, Any]:
    """Call a tool, summarize if asked, and answer in the segment that begins with the summary."""
    _scenes.append(scene)
    last = scene.conversation[-1]
    if last.get("content") == INSTRUCTION:
        return {"text": SUMMARY}
    if any(SUMMARY in str(item.get("content")) for item in scene.conversation):
        return {"text": "Take a coat."}
    return {"tool_calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}


def bench(**settings: Any) -> Bench:
    return Bench(f"{__name__}:play", compaction={"at_tokens": 1, **settings.pop("compaction", {})}, **settings)


def test_the_next_segment_begins_with_the_prompt_and_the_summary() -> None:
    """The task must stay visible, and nothing else of the old context may."""
    result = bench().run()

    assert [len(scene.conversation) for scene in _scenes] == [1, 4, 2]
    assert _scenes[2].conversation[0]["content"] == "What to wear?"
    assert SUMMARY in _scenes[2].conversation[1]["content"]
    assert result["reward"] == 1.0


def test_the_response_has_the_items_of_all_segments() -> None:
    """The verifier judges the whole episode."""
    response = bench().run()["response"]

    assert types(response) == ["function_call", "function_call_output", *["message"] * 4]
    assert [item.get("role") for item in response["output"][2:]] == ["user", "assistant", "user", "assistant"]


def test_segments_and_the_compaction_are_recorded() -> None:
    """A reader must see what the model saw in each of its contexts."""
    records = bench().run()["ng_agent_observations"]["records"]

    first, compaction, second = records
    assert [each["kind"] for each in records] == ["agent_invocation", "context_compaction", "agent_invocation"]
    assert (compaction["invocation_id"], compaction["trigger"], compaction["summary"]) == ("root", "threshold", SUMMARY)
    assert (second["invocation_id"], second["parent_invocation_id"]) == ("root-segment-2", "root")
    assert len(first["conversation"]) == 5
    assert [item["role"] for item in second["conversation"]] == ["user", "user", "assistant"]


def test_each_segment_is_a_sample() -> None:
    """Joined, the segments would be a prompt that the model never saw."""
    result = bench(token_ids=True).run(_ng_task_index=0, _ng_rollout_index=0)

    rollout = rollout_of(result)
    assert rollout.trainable
    assert [len(sample.spans) for sample in rollout.samples] == [2, 1]


def test_usage_and_turns_include_the_summary() -> None:
    """Compaction costs tokens, and limits must count them."""
    result = bench().run()

    assert len(result["_ng_turns"]) == 3
    assert result["response"]["usage"]["total_tokens"] == sum(turn[1] + turn[3] for turn in result["_ng_turns"])


@pytest.mark.parametrize("reply", [{"reasoning": "hm"}, {"text": "half", "incomplete": "max_output_tokens"}])
def test_without_a_summary_the_full_context_is_a_limit(reply: dict[str, Any]) -> None:
    """An episode that cannot continue is no wrong answer."""
    script = [{"tool_calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}, reply]

    result = Bench(script, compaction={"at_tokens": 1}).run()

    assert (result["_ng_failure_class"], result["_ng_failure"]) == ("limit", {"which": "context_length"})


def test_the_number_of_compactions_is_limited() -> None:
    """A threshold below the prompt would compact without end."""
    call = {"tool_calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}

    result = Bench([call, {"text": "s"}] * 50, compaction={"at_tokens": 1, "max_compactions": 2}).run()

    kinds = [each["kind"] for each in result["ng_agent_observations"]["records"]]
    assert kinds.count("context_compaction") == 2
    assert (result["_ng_failure_class"], result["_ng_failure"]) == ("limit", {"which": "context_length"})


def test_a_compaction_does_not_hide_the_last_step() -> None:
    """A turn for a summary may be the one that reaches `max_steps`; the episode must still end there."""
    call = {"tool_calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}

    result = Bench([call, {"text": "s"}] * 50, compaction={"at_tokens": 1}, max_steps=2).run()

    kinds = [each["kind"] for each in result["ng_agent_observations"]["records"]]
    assert kinds.count("context_compaction") == 1
    assert "_ng_failure_class" not in result and result["reward"] == 2.0


async def test_a_prompt_that_does_not_fit_is_compacted_with_shortened_outputs() -> None:
    """The endpoint knows the window better than any setting: its refusal begins a new segment, too."""

    def answer(_turn: int) -> str:
        """Call the tool until the summary is visible."""
        prompt = json.dumps(engine.calls[-1][2], ensure_ascii=False)
        if INSTRUCTION in prompt:
            return SUMMARY
        return "Take a coat." if SUMMARY in prompt else '<tool_call>{"name":"flood", "arguments":{}}</tool_call>'

    world = Bench([{"text": "unused"}], compaction={"at_tokens": 1_000_000, "max_output_characters": 100})
    async with serving(MockEngine(answer, max_model_len=5000)) as engine:
        policy = model(engine.url)
        app = policy.setup_webserver()
        policy.setup_exception_middleware(app)
        in_process.mount(HOST, PORTS["model"], app)
        tool = {"type": "function", "name": "flood", "parameters": {"type": "object"}, "strict": False}
        row = {"responses_create_params": {"input": "What to wear?", "tools": [tool]}}
        result = await (await ask(world.agent, "/run", row)).json()

    assert "_ng_failure_class" not in result
    assert result["ng_agent_observations"]["records"][1]["trigger"] == "context_length"
    assert result["response"]["output"][-1]["content"][0]["text"] == "Take a coat."
