"""Function calling: the reply is right when its tool calls are the expected ones, in any order."""

import json
import math
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
    normalize_tool_name,
)
from nemo_gym.environment.verifier_fixture import VerifierFixture, offline_server
from nemo_gym.grading.structured import Malformed, parse_json
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseFunctionToolCall
from nemo_gym.reward_profile import compute_pass_majority_metrics, highest_k_metrics

Failure = Literal["no_call", "too_many_calls", "too_few_calls", "bad_arguments", "wrong_name", "wrong_arguments"]
LONGEST_ARGUMENTS = 200_000
MOST_CALLS = 128


class Call(BaseModel):
    """A tool and what it is called with."""

    model_config = ConfigDict(extra="ignore")

    name: str = Field(min_length=1)
    arguments: dict[str, Any] = {}


def same_value(expected: Any, found: Any) -> bool:
    """Equal as JSON: numbers by value, true is not 1, keys in any order, the same characters however encoded."""
    if isinstance(expected, bool) or isinstance(found, bool):
        return expected is found
    if isinstance(expected, int | float) and isinstance(found, int | float):
        return expected == found or math.isclose(expected, found, rel_tol=1e-12, abs_tol=0.0)
    if isinstance(expected, str) and isinstance(found, str):
        return unicodedata.normalize("NFC", expected) == unicodedata.normalize("NFC", found)
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(same_value, expected, found))
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() == found.keys() and all(same_value(expected[key], found[key]) for key in expected)
    return expected is None and found is None


def fits(expected: Call, found: Call) -> bool:
    """Whether a call is the expected one. Arguments that were not asked for do not count."""
    return expected.name == found.name and all(
        name in found.arguments and same_value(value, found.arguments[name])
        for name, value in expected.arguments.items()
    )


def matched(expected: Sequence[Call], found: Sequence[Call]) -> int:
    """The most expected calls that can be given a found call each, no call given twice."""
    taken: dict[int, int] = {}

    def place(wanted: int, tried: set[int]) -> bool:
        for number, call in enumerate(found):
            if number not in tried and fits(expected[wanted], call):
                tried.add(number)
                if number not in taken or place(taken[number], tried):
                    taken[number] = wanted
                    return True
        return False

    return sum(place(wanted, set()) for wanted in range(len(expected)))


def calls_of(response: NeMoGymResponse) -> list[Call | None]:
    """Every tool call of a reply; None where the arguments are not an object."""
    items = [item for item in response.output if isinstance(item, NeMoGymResponseFunctionToolCall)]
    return [_call(item) for item in items]


def _call(item: NeMoGymResponseFunctionToolCall) -> Call | None:
    text = item.arguments.strip() or "{}"
    if len(text) > LONGEST_ARGUMENTS:
        return None
    try:
        arguments = parse_json(text)
    except Malformed:
        return None
    return Call(name=normalize_tool_name(item.name), arguments=arguments) if isinstance(arguments, dict) else None


def failure_of(expected: Sequence[Call], found: Sequence[Call | None]) -> Failure | None:
    """Why the calls are not the expected ones; None when they are."""
    if not found:
        return "no_call"
    if len(found) != len(expected):
        return "too_many_calls" if len(found) > len(expected) else "too_few_calls"
    readable = [call for call in found if call is not None]
    if len(readable) < len(found):
        return "bad_arguments"
    if sorted(call.name for call in readable) != sorted(call.name for call in expected):
        return "wrong_name"
    return None if matched(expected, readable) == len(expected) else "wrong_arguments"


class XlamFcConfig(BaseResourcesServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS


class XlamFcRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    expected_answers: list[Call] = Field(
        min_length=1, max_length=MOST_CALLS, validation_alias=AliasChoices("expected_answers", "answers")
    )
    """The calls that answer the request: `[{"name": …, "arguments": {…}}]`, or that list as JSON text."""

    @field_validator("expected_answers", mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError as problem:
            raise ValueError(f"not JSON: {problem}") from None


class XlamFcVerifyRequest(XlamFcRunRequest, BaseVerifyRequest):
    pass


class XlamFcVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    expected_answers: list[Call]
    predicted_calls: list[Call | None]
    """What was called; null where the arguments could not be read."""
    matched_calls: int
    failure_reason: Failure | None = None


class XlamFcServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: XlamFcConfig

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/{tool_name}")(self.any_tool)
        return app

    async def any_tool(self, tool_name: str) -> dict[str, str]:
        """Take a call of any tool. Nothing is executed: which calls are made is all that counts."""
        return {"tool": tool_name, "status": "recorded"}

    async def verify(self, body: XlamFcVerifyRequest) -> XlamFcVerifyResponse:
        """Full reward when every expected call was made and no other."""
        found = calls_of(body.response)
        reason = failure_of(body.expected_answers, found)
        readable = [call for call in found[:MOST_CALLS] if call is not None]
        graded = {
            "expected_answers": body.expected_answers,
            "predicted_calls": found,
            "matched_calls": matched(body.expected_answers, readable),
            "failure_reason": reason,
            "reward": float(reason is None),
        }
        return XlamFcVerifyResponse(**(body.model_dump() | graded))

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        reasons = [rollout.get("failure_reason") for task in tasks for rollout in task]
        shares = {f"failure/{reason}": reasons.count(reason) / len(reasons) for reason in set(reasons) if reason}
        return compute_pass_majority_metrics(tasks)[0] | dict(sorted(shares.items()))

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        means = {key: agent_metrics[key] for key in ("mean/reward",) if key in agent_metrics}
        return means | highest_k_metrics(agent_metrics, "pass@{k}")


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(XlamFcServer),
    request_model=XlamFcVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


if __name__ == "__main__":
    XlamFcServer.run_webserver()
