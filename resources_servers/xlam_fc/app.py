"""Function calling: the reply is right when its tool calls are the expected ones, in any order."""

import json
import math
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator

from nemo_gym.authoring.verifier_cases import VerifierFixture, offline_server
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
    normalize_tool_name,
)
from nemo_gym.grading.data_formats import MalformedData, parse_json
from nemo_gym.grading.schema import find_violations, schema_problems
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseFunctionToolCall
from nemo_gym.reward_profile import compute_pass_majority_metrics, headline_metrics

Failure = Literal[
    "no_call",
    "too_many_calls",
    "too_few_calls",
    "bad_arguments",
    "wrong_name",
    "wrong_arguments",
    "arguments_outside_schema",
]
LONGEST_ARGUMENTS = 200_000
MOST_CALLS = 128
_COMPOSING = frozenset({"$ref", "allOf", "anyOf", "oneOf"})


class Call(BaseModel):
    """The name of a tool and the arguments of a call."""

    model_config = ConfigDict(extra="ignore")

    name: str = Field(min_length=1)
    arguments: dict[str, Any] = {}


def same_value(expected: Any, actual: Any) -> bool:
    """Compare as JSON: numbers by value, true is not 1, keys in any order, characters however encoded."""
    if isinstance(expected, bool) or isinstance(actual, bool):
        return expected is actual
    if isinstance(expected, int | float) and isinstance(actual, int | float):
        if expected == actual or (isinstance(expected, int) and isinstance(actual, int)):
            return expected == actual
        try:
            return math.isclose(expected, actual, rel_tol=1e-12, abs_tol=0.0)
        except OverflowError:  # an integer that no float can hold
            return False
    if isinstance(expected, str) and isinstance(actual, str):
        return unicodedata.normalize("NFC", expected) == unicodedata.normalize("NFC", actual)
    if isinstance(expected, list) and isinstance(actual, list):
        return len(expected) == len(actual) and all(map(same_value, expected, actual))
    if isinstance(expected, dict) and isinstance(actual, dict):
        return expected.keys() == actual.keys() and all(same_value(expected[key], actual[key]) for key in expected)
    return expected is None and actual is None


def is_expected_call(expected: Call, call: Call) -> bool:
    """Return whether a call has the name and every argument of the expected one; it may have further arguments."""
    return expected.name == call.name and all(
        name in call.arguments and same_value(value, call.arguments[name]) for name, value in expected.arguments.items()
    )


def count_matches(
    expected: Sequence[Call], calls: Sequence[Call], fits: Callable[[Call, Call], bool] = is_expected_call
) -> int:
    """Return the size of a largest matching of expected calls and calls: augmenting paths in a bipartite graph."""
    partners: dict[int, int] = {}

    def find_partner(index: int, tried: set[int]) -> bool:
        for number, call in enumerate(calls):
            if number not in tried and fits(expected[index], call):
                tried.add(number)
                if number not in partners or find_partner(partners[number], tried):
                    partners[number] = index
                    return True
        return False

    return sum(find_partner(index, set()) for index in range(len(expected)))


def extract_calls(response: NeMoGymResponse) -> list[Call | None]:
    """Return every tool call of a reply; None where the name is empty or the arguments are no object."""
    items = [item for item in response.output if isinstance(item, NeMoGymResponseFunctionToolCall)]
    return [_parse_call(item) for item in items]


def _parse_call(item: NeMoGymResponseFunctionToolCall) -> Call | None:
    text = item.arguments.strip() or "{}"
    if len(text) > LONGEST_ARGUMENTS:
        return None
    try:
        arguments = parse_json(text)
    except MalformedData:
        return None
    name = normalize_tool_name(item.name)
    return Call(name=name, arguments=arguments) if name and isinstance(arguments, dict) else None


def find_failure(expected: Sequence[Call], calls: Sequence[Call | None]) -> Failure | None:
    """Return the reason why the calls are not the expected ones; None if they are."""
    if not calls:
        return "no_call"
    if len(calls) != len(expected):
        return "too_many_calls" if len(calls) > len(expected) else "too_few_calls"
    readable = [call for call in calls if call is not None]
    if len(readable) < len(calls):
        return "bad_arguments"
    if sorted(call.name for call in readable) != sorted(call.name for call in expected):
        return "wrong_name"
    return None if count_matches(expected, readable) == len(expected) else "wrong_arguments"


def is_within_schema(expected: Call, call: Call, schema: Any) -> bool:
    """Return whether the arguments of a call beyond those of its expected call fit the tool's schema.

    A name that the schema does not list is accepted only if the schema allows additional properties explicitly. A
    schema that is not valid, as in some public rows, decides about names only; without `properties`, its keys are the
    names. Schemas composed of others may require arguments anywhere, so that the whole call must fit.
    """
    further = {name: value for name, value in call.arguments.items() if name not in expected.arguments}
    if not further or not isinstance(schema, dict):
        return True
    if schema_problems(schema):
        properties = schema.get("properties")
        names = (properties if isinstance(properties, dict) else schema).keys()
        return bool(schema.get("additionalProperties")) or further.keys() <= names
    closed = {**schema, "unevaluatedProperties": False}
    if _COMPOSING.isdisjoint(schema):
        return not find_violations(further, {**closed, "required": []})
    return not find_violations(call.arguments, closed)


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
    """The calls of the reply; null where the arguments could not be read."""
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
        """Accept a call of any tool; nothing is executed, because only the calls themselves count."""
        return {"tool": tool_name, "status": "recorded"}

    async def verify(self, body: XlamFcVerifyRequest) -> XlamFcVerifyResponse:
        """Give full reward if every expected call was made and no other."""
        calls = extract_calls(body.response)
        reason = find_failure(body.expected_answers, calls) or self._schema_failure(body, calls)
        readable = [call for call in calls[:MOST_CALLS] if call is not None]
        verdict = {
            "expected_answers": body.expected_answers,
            "predicted_calls": calls,
            "matched_calls": count_matches(body.expected_answers, readable),
            "failure_reason": reason,
            "reward": float(reason is None),
        }
        return XlamFcVerifyResponse(**(body.model_dump() | verdict))

    def _schema_failure(self, body: XlamFcVerifyRequest, calls: Sequence[Call | None]) -> Failure | None:
        """Return the failure of expected calls with arguments that the offered tools do not have, or None."""
        tools = [tool for tool in body.responses_create_params.tools if tool.get("type") == "function"]
        schemas = {normalize_tool_name(str(tool.get("name"))): tool.get("parameters") for tool in tools}

        def fits(expected: Call, call: Call) -> bool:
            return is_expected_call(expected, call) and is_within_schema(expected, call, schemas.get(call.name))

        readable = [call for call in calls if call is not None]
        is_valid = count_matches(body.expected_answers, readable, fits) == len(body.expected_answers)
        return None if is_valid else "arguments_outside_schema"

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        reasons = [rollout.get("failure_reason") for task in tasks for rollout in task]
        shares = {f"failure/{reason}": reasons.count(reason) / len(reasons) for reason in set(reasons) if reason}
        return compute_pass_majority_metrics(tasks)[0] | dict(sorted(shares.items()))

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        return headline_metrics(agent_metrics)


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(XlamFcServer),
    request_model=XlamFcVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


# The names of these classes in NeMo Gym, for folders that import or subclass them.
XlamFcResourcesServer = XlamFcServer
XlamFcResourcesServerConfig = XlamFcConfig


if __name__ == "__main__":
    XlamFcServer.run_webserver()
