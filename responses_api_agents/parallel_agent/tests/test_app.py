"""Several attempts at a task: a scripted model and a real environment in this process."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from responses_api_agents.parallel_agent.app import ParallelAgent, find_answer
from responses_api_agents.simple_agent.tests import mcp_server
from responses_api_agents.simple_agent.tests.bench import Bench, unmount_servers
from responses_api_models.scripted_model.script import Scene

SEED = 10


@pytest.fixture(autouse=True)
def _unmount_servers() -> Iterator[None]:
    yield
    unmount_servers()


def play(scene: Scene) -> dict[str, Any]:
    """Call the tool in attempts with an even seed, answer by the seed, and choose the second answer if asked."""
    if "choose the best one" in str(scene.conversation[0]):
        return {"text": "The second one is right: 2"}
    attempt = scene.seed - SEED
    if attempt % 2 == 0 and not scene.number:
        return {"tool_calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}
    return {"text": f"So:\n\\boxed{{{['7', '8', '8', '9'][attempt]}}}"}


def bench(script: Any = f"{__name__}:play", **settings: Any) -> Bench:
    return Bench(script, agent=ParallelAgent, **settings)


def run(world: Bench) -> dict[str, Any]:
    extra = json.dumps({"seed": SEED})
    return world.run(responses_create_params={"input": "How many?", "metadata": {"extra_body": extra}})


def answer(result: dict[str, Any]) -> str:
    return result["response"]["output"][-1]["content"][0]["text"]


def test_the_majority_is_verified_in_its_own_session() -> None:
    """The state that the verifier sees must be that of the chosen attempt, and of no other."""
    world = bench()

    result = run(world)

    assert answer(result) == "So:\n\\boxed{8}"
    assert (result["parallel"]["chosen"], result["parallel"]["votes"]) == ("candidate-2", {"7": 1, "8": 2, "9": 1})
    assert result["reward"] == 0.0  # the chosen attempt called no tool
    assert sorted(map(len, world.environment._calls.values())) == [1, 1]


def test_the_model_chooses_the_best() -> None:
    """Answers without a countable form need a comparison, which must not see the reward."""
    result = run(bench(choose="best"))

    assert result["parallel"]["chosen"] == "candidate-2"


def test_an_unreadable_choice_is_the_first_attempt() -> None:
    """A choice must always end."""
    result = run(bench([{"text": "none of them"}], choose="best"))

    assert result["parallel"]["chosen"] == "candidate-1"


def test_all_attempts_and_the_choice_are_recorded_and_paid() -> None:
    """Best of four costs four rollouts and the choice, and a reader wants to see what was not chosen."""
    result = run(bench(choose="best"))

    names = {record["invocation_id"] for record in result["ng_agent_observations"]["records"]}
    assert names == {"candidate-1", "candidate-2", "candidate-3", "candidate-4", "choice"}
    assert result["response"]["usage"]["total_tokens"] > sum(turn[1] + turn[3] for turn in result["_ng_turns"])


def test_attempts_without_an_answer_have_no_vote() -> None:
    """Three cut answers are not a majority."""
    cut = [{"text": "\\boxed{1", "incomplete": "max_output_tokens"}]

    result = run(bench(cut))

    assert result["parallel"]["votes"] == {}
    assert result["parallel"]["chosen"] == "candidate-1"


@pytest.mark.parametrize(
    ("text", "pattern", "expected"),
    [
        ("Well.\nThe answer is 4.", None, "the answer is 4"),
        (r"\boxed{ 4 } or \boxed{5}", None, "5"),
        ("ANSWER: B then ANSWER: C", r"ANSWER: (\w)", "c"),
        ("nothing", r"ANSWER: (\w)", ""),
        ("", None, ""),
    ],
)
def test_answers_are_counted_in_one_form(text: str, pattern: str | None, expected: str) -> None:
    """Equal answers that are written differently must share their votes."""
    assert find_answer(text, pattern) == expected


def test_attempts_whose_answer_is_not_found_do_not_vote() -> None:
    """Two texts without an answer agree in nothing; one with an answer must win against them."""
    result = run(bench(f"{__name__}:play_pattern", answer_pattern=r"ANSWER: (\w+)"))

    assert (result["parallel"]["chosen"], result["parallel"]["votes"]) == ("candidate-3", {"4": 1})
    assert answer(result) == "ANSWER: 4"


def play_pattern(scene: Scene) -> str:
    """Answer by the seed."""
    return ["I do not know.", "Hard to say.", "ANSWER: 4", "Who knows?"][scene.seed - SEED]


def test_without_any_vote_the_first_complete_attempt_is_chosen() -> None:
    """A choice must always end, also if the pattern matches nowhere."""
    result = run(bench([{"text": "no answer"}], answer_pattern="ANSWER: .*"))

    assert (result["parallel"]["chosen"], result["parallel"]["votes"]) == ("candidate-1", {})


def play_cut_choice(scene: Scene) -> dict[str, Any]:
    """Answer, and cut the comparison after a number that is not the choice."""
    if "choose the best one" in str(scene.conversation[0]):
        return {"text": "First, number 3", "incomplete": "max_output_tokens"}
    return {"text": "4"}


def test_a_comparison_that_is_cut_is_a_failure() -> None:
    """The first attempt, or a number of half a comparison, is no choice of the model."""
    extra = json.dumps({"seed": SEED})
    row = {"responses_create_params": {"input": "How many?", "metadata": {"extra_body": extra}}}

    reply = bench(f"{__name__}:play_cut_choice", choose="best").http.post("/run", json=row)

    assert reply.status_code == 500
    assert "comparison of 4 answers hit a limit of the model: max_output_tokens" in reply.text


def test_the_record_has_the_tools_of_external_servers(tmp_path: Path) -> None:
    """A record without the tools that the model had cannot be trained on or understood."""
    server = {"command": [sys.executable, mcp_server.__file__, str(tmp_path)], "tools": ["echo"]}

    result = run(bench([{"text": "4"}], candidates=2, mcp_servers={"files": server}))

    assert [tool["name"] for tool in result["responses_create_params"]["tools"]] == ["files__echo"]
