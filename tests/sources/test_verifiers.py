"""Environments of verifiers give the rewards, metrics and turns that its runner gives."""

import asyncio
import json
import random
from itertools import takewhile
from typing import Any

import pytest
import verifiers.legacy as vf
from verifiers.legacy.clients import Client
from verifiers.legacy.types import Response, ResponseMessage, ToolCall

from nemo_gym.config.environment_sources import parse_name
from tests.sources.conftest import ROOT, Evaluation, actions_of, source
from tests.sources.packages import gym_vault
from tests.sources.policies import choose

PACKAGES = "tests.sources.packages"
WRONGLY = "tests.sources.policies:choose_wrongly"


def last_observation(prompt: list[Any]) -> str:
    """Return what a turn of the policy shows: the last output of a tool, or all new messages."""
    if prompt[-1].role == "tool":
        return prompt[-1].content
    new = list(takewhile(lambda message: message.role == "user", reversed(prompt)))
    return "\n\n".join(message.content for message in reversed(new))


class ScriptedClient(Client):
    """A model of the package that follows a policy: the last message and the number of its turns decide."""

    to_native_tool = to_native_prompt = get_native_response = None
    raise_from_native_response = from_native_response = setup_client = close = None

    def __init__(self, policy) -> None:
        super().__init__(None)
        self.policy = policy

    async def get_response(self, prompt, model, sampling_args, tools=None, **_) -> Response:
        number = sum(message.role == "assistant" for message in prompt[1:])
        reply = self.policy(last_observation(prompt), number)
        fields = reply if isinstance(reply, dict) else {"text": reply}
        calls = [
            ToolCall(
                id=f"{number}-{position}",
                name=call["name"],
                arguments=call["arguments"] if isinstance(call["arguments"], str) else json.dumps(call["arguments"]),
            )
            for position, call in enumerate(fields.get("tool_calls", ()))
        ]
        message = ResponseMessage(
            content=fields.get("text", ""), tool_calls=calls or None, finish_reason="stop", is_truncated=False
        )
        return Response(id="1", created=0, model=model, message=message)


def play_alone(record: dict[str, Any], policy) -> dict[str, Any]:
    """Play a row in the package's own runner."""
    env = vf.load_environment(record["environment"], **record["arguments"])
    random.seed(record["seed"])
    return asyncio.run(env.run_rollout(record["example"], ScriptedClient(policy), "model", {}))


def shown_of(record: dict[str, Any]) -> list[str]:
    """What the environment showed after the first turn."""
    items = record["response"]["output"]
    return [
        item.get("output", item.get("content"))
        for item in items
        if item["type"] == "function_call_output" or item.get("role") == "user"
    ]


@pytest.mark.parametrize(
    ("package", "policy"), [("gym_sums", choose), ("gym_guess", choose), ("gym_vault", gym_vault.policy)]
)
def test_rewards_metrics_and_turns_are_those_of_the_package(evaluation: Evaluation, package, policy) -> None:
    """A system prompt, several user messages in a turn, weights, tools that raise: all must reach both models alike."""
    name = f"{policy.__module__}:{policy.__name__}"
    records = evaluation.run([f"verifiers:{PACKAGES}.{package}?size=12"], "--concurrency", "12", GYM_TEST_POLICY=name)

    assert len(records) == 12
    for record in records:
        expected = play_alone(record, policy)
        replies = [one["content"] for one in expected["completion"] if one["role"] == "assistant" and one["content"]]
        assert (record["reward"], record["info"]["metrics"]) == (expected["reward"], expected["metrics"])
        assert record["info"]["stop_condition"] == expected["stop_condition"]
        assert actions_of(record) == replies
        has_last_word = expected["stop_condition"] == "has_final_env_response"  # which no model sees
        others = [one["content"] for one in expected["completion"] if one["role"] != "assistant"]
        assert "\n\n".join(shown_of(record)) == "\n\n".join(others[:-1] if has_last_word else others)
    assert len({record["reward"] for record in records}) > 1


def test_the_environment_of_each_session_has_its_own_seed(evaluation: Evaluation) -> None:
    """Hints are drawn from the global generator: 24 rollouts at once must not draw from one."""
    name = f"verifiers:{PACKAGES}.gym_guess?size=12"
    records = evaluation.run([name], "--concurrency", "24", "--num-repeats", "2")
    by_task: dict[int, set[str]] = {}
    for record in records:
        by_task.setdefault(record["_ng_task_index"], set()).add(json.dumps(shown_of(record)))

    assert len(records) == 24
    assert {len(shown) for shown in by_task.values()} == {1}
    assert len(set.union(*by_task.values())) > 8


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raise", "lost secret"),
        ("error", "broken tool"),
        ("exit", "its process ended with status 7"),
        ("hang", "did not answer within 3 s"),
    ],
)
def test_a_fault_of_the_package_is_a_failure_without_a_reward(evaluation: Evaluation, fault, reason) -> None:
    """The package itself scores such a rollout, with a reward that means nothing."""
    name = f"verifiers:{PACKAGES}.gym_guess?size=2&fault={fault}"
    instance = parse_name(name, [ROOT]).instance
    limit = f"++{instance}.resources_servers.verifiers.step_timeout_seconds=3"
    records = evaluation.run([name], "--max-attempts", "1", limit, may_fail=True, GYM_TEST_POLICY=WRONGLY)

    assert (records, len(evaluation.failed)) == ([], 2)
    assert all(reason in failure["_ng_failure"]["message"] for failure in evaluation.failed)


def test_a_rollout_that_ends_at_max_turns_has_no_reward(evaluation: Evaluation) -> None:
    """The rubric has not graded it; a reward of 0 would be invented."""
    name = f"verifiers:{PACKAGES}.gym_guess?size=2&max_turns=1"
    records = evaluation.run([name], may_fail=True, GYM_TEST_POLICY=WRONGLY)

    assert records == []
    kinds = [(failure["_ng_failure_class"], failure["_ng_failure"]["which"]) for failure in evaluation.failed]
    assert kinds == [("limit", "steps")] * 2


def test_there_is_no_list_of_ids_because_environments_are_packages() -> None:
    """Any name may be one of an installed package."""
    assert source("verifiers").ids == {}
