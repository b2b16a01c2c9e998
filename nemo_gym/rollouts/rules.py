"""What a result must be to count as scored: a reward in the declared range, and a model that said something."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nemo_gym.errors import ConfigError
from nemo_gym.keys import NG_MODEL_CALL_CAPTURE_KEY, RESPONSE_KEY_NAME
from nemo_gym.rollouts.blocks import Block, server_blocks
from nemo_gym.rollouts.usage import total_tokens

REWARD_RANGE_KEY = "reward_range"
NEEDS_MODEL_KEY = "needs_model"

_NOT_THE_MODELS = ("function_call_output", "computer_call_output", "local_shell_call_output", "mcp_approval_response")
_ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class Rule:
    """What results of one agent are held to."""

    reward_range: tuple[float, float] | None = None
    """Lowest and highest reward, as its resources server declares (`reward_range: [0, 1]`)."""
    needs_model: bool = True
    """Whether a result without a sign of a successful model call is a failure (`needs_model: false` on the agent)."""
    judges: frozenset[str] = frozenset()
    """Models that its resources server calls, and it does not."""


Rules = Mapping[str, Rule]
"""By agent; agents not named are held to `Rule()`."""

EVERYBODY = Rule()


def rules_of(config: Mapping[str, Any]) -> dict[str, Rule]:
    """The rules that a configuration declares, by agent.

    Raises:
        ConfigError: a declaration makes no sense.
    """
    blocks = server_blocks(config)
    rules: dict[str, Rule] = {}
    for block in blocks.values():
        if block.server_type != "responses_api_agents":
            continue
        environment = blocks.get(block.reference("resources_server") or "")
        rules[block.name] = Rule(
            reward_range=_reward_range(environment) if environment else None,
            needs_model=block.fields.get(NEEDS_MODEL_KEY) is not False,
            judges=_models(environment, blocks) - _models(block, blocks) if environment else frozenset(),
        )
    return rules


def range_problem(reward: float, rule: Rule) -> str | None:
    """Why a finite reward is not one the environment gives, or None when it is."""
    if rule.reward_range is None:
        return None
    low, high = rule.reward_range
    if low <= reward <= high:
        return None
    return f"the reward is {reward:g}, outside the declared range {low:g} to {high:g}"


def shows_a_model(record: Mapping[str, Any]) -> bool:
    """Whether a record shows that a model call succeeded: something a model made, tokens used, or a captured answer.

    Items of `response.output` count, but for outputs of tools and messages that are not the assistant's.
    """
    response = record.get(RESPONSE_KEY_NAME)
    output = response.get("output") if isinstance(response, dict) else None
    if isinstance(output, list) and any(map(_is_the_models, output)):
        return True
    return total_tokens(record) > 0 or _has_captured_answer(record)


def _is_the_models(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    kind = item.get("type", "message")
    return item.get("role", _ASSISTANT) == _ASSISTANT if kind == "message" else kind not in _NOT_THE_MODELS


def _has_captured_answer(record: Mapping[str, Any]) -> bool:
    capture = record.get(NG_MODEL_CALL_CAPTURE_KEY)
    calls = capture.get("calls") if isinstance(capture, Mapping) else None
    return any(isinstance(call, Mapping) and call.get("response") for call in calls or ())


def _reward_range(environment: Block) -> tuple[float, float] | None:
    declared = environment.fields.get(REWARD_RANGE_KEY)
    if not isinstance(declared, list | tuple):
        return None  # nothing, or a field that a server of somebody else's uses for something else
    numbers = [value for value in declared if _is_number(value)]
    if len(numbers) != 2 or len(declared) != 2 or not numbers[0] <= numbers[1]:
        raise ConfigError(
            f"{REWARD_RANGE_KEY} must be two numbers, lowest and highest, not {declared!r}",
            where=environment.name,
            fix=f"{REWARD_RANGE_KEY}: [0, 1]",
        )
    return float(numbers[0]), float(numbers[1])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _models(block: Block, blocks: Mapping[str, Block]) -> frozenset[str]:
    """The model instances that a block refers to, at any depth."""

    def named(node: Any) -> set[str]:
        if isinstance(node, Mapping):
            own = {str(node["name"])} if node.get("type") == "responses_api_models" and node.get("name") else set()
            return own.union(*(named(value) for value in node.values()))
        return set().union(*(named(item) for item in node)) if isinstance(node, list | tuple) else set()

    return frozenset(name for name in named(block.fields) if name in blocks)
