"""Unit conversion with three reward components: the right tool, the right arguments, the result in the reply."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any, ClassVar, Literal, Self

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from nemo_gym.base_resources_server import (
    BaseMultiRewardVerifyResponse,
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    ReverifyMode,
    SimpleResourcesServer,
    normalize_tool_name,
)
from nemo_gym.grading.numbers import last_value as last_number
from nemo_gym.openai_utils import (
    NeMoGymFunctionCallOutput,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseOutputMessage,
)
from nemo_gym.wire.call_reply import parse_tool_arguments

SCALES = {
    "metre": (1.0, 0.0),
    "kilometre": (1000.0, 0.0),
    "mile": (1609.344, 0.0),
    "foot": (0.3048, 0.0),
    "gram": (1.0, 0.0),
    "kilogram": (1000.0, 0.0),
    "pound": (453.59237, 0.0),
    "ounce": (28.349523125, 0.0),
    "kelvin": (1.0, 0.0),
    "celsius": (1.0, 273.15),
    "fahrenheit": (5 / 9, 459.67 * 5 / 9),
}
"""Factor and offset of each unit, in the first unit of its kind."""


class ConversionRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    value: float = Field(strict=True, allow_inf_nan=False)
    from_unit: str
    to_unit: str


class ConvertLengthRequest(ConversionRequest):
    from_unit: Literal["metre", "kilometre", "mile", "foot"]
    to_unit: Literal["metre", "kilometre", "mile", "foot"]


class ConvertMassRequest(ConversionRequest):
    from_unit: Literal["gram", "kilogram", "pound", "ounce"]
    to_unit: Literal["gram", "kilogram", "pound", "ounce"]


class ConvertTemperatureRequest(ConversionRequest):
    from_unit: Literal["kelvin", "celsius", "fahrenheit"]
    to_unit: Literal["kelvin", "celsius", "fahrenheit"]


class ConversionResponse(BaseModel):
    value: float
    unit: str


TOOLS: dict[str, type[ConversionRequest]] = {
    "convert_length": ConvertLengthRequest,
    "convert_mass": ConvertMassRequest,
    "convert_temperature": ConvertTemperatureRequest,
}


def convert(request: ConversionRequest) -> float:
    """Return the value in its new unit, to two decimals."""
    (scale, zero), (new_scale, new_zero) = SCALES[request.from_unit], SCALES[request.to_unit]
    return round((request.value * scale + zero - new_zero) / new_scale, 2)


def only_call(output: Sequence[Any]) -> NeMoGymResponseFunctionToolCall | None:
    """Return the tool call of a conversation that made exactly one: several would be a way to try them all."""
    calls = [item for item in output if isinstance(item, NeMoGymResponseFunctionToolCall)]
    return calls[0] if len(calls) == 1 else None


def is_same_call(
    call: NeMoGymResponseFunctionToolCall, tool: str, arguments: ConversionRequest | dict[str, Any]
) -> bool:
    """Return whether the tool would read the call's arguments as the expected ones."""
    try:
        values = parse_tool_arguments(call.arguments)
        return values == arguments if isinstance(arguments, dict) else TOOLS[tool].model_validate(values) == arguments
    except ValueError:  # also pydantic's ValidationError
        return False


def final_number(output: Sequence[Any]) -> float | None:
    """Return the last number in the messages after the last tool result, or None."""
    results = [position for position, item in enumerate(output) if isinstance(item, NeMoGymFunctionCallOutput)]
    if not results:
        return None
    messages = [item for item in output[results[-1] :] if isinstance(item, NeMoGymResponseOutputMessage)]
    texts = [getattr(part, "text", "") for message in messages for part in message.content]
    return last_number("\n".join(texts))


class Weights(BaseModel):
    """The weight of each component in the reward; their sum is 1."""

    model_config = ConfigDict(extra="forbid")

    right_tool: float = Field(ge=0)
    right_arguments: float = Field(ge=0)
    answered: float = Field(ge=0)

    @model_validator(mode="after")
    def sum_to_one(self) -> Self:
        total = self.right_tool + self.right_arguments + self.answered
        if not math.isclose(total, 1.0):
            raise ValueError(f"the weights must sum to 1, not {total:g}")
        return self

    def of(self, components: dict[str, float]) -> dict[str, float]:
        """Return the weights of these components; equal ones if they have none."""
        weights: dict[str, float] = self.model_dump(include=set(components))
        return weights if any(weights.values()) else dict.fromkeys(weights, 1.0 / len(weights))

    def reward(self, components: dict[str, float]) -> float:
        """Return the weighted sum, divided by the sum of the weights so that rounded weights still reach exactly 1."""
        weights = self.of(components)
        return math.fsum(weights[name] * components[name] for name in weights) / math.fsum(weights.values())


class ConversionConfig(BaseResourcesServerConfig):
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.STATELESS

    weights: Weights = Weights(right_tool=0.25, right_arguments=0.5, answered=0.25)
    tolerance: float = Field(default=0.05, ge=0)
    """Largest distance between the number in the reply and the tool's result: one decimal is enough."""


class ExpectedCall(BaseModel):
    """The call of a row written for NeMo Gym; its arguments may be JSON text."""

    model_config = ConfigDict(extra="allow")

    name: str
    arguments: dict[str, Any]

    @field_validator("arguments", mode="before")
    @classmethod
    def _parse_text(cls, arguments: Any) -> Any:
        return parse_tool_arguments(arguments) if isinstance(arguments, str) else arguments


class ConversionRunRequest(BaseRunRequest):
    expected_tool: str
    expected_arguments: dict[str, Any]
    expected_call: ExpectedCall | None = Field(default=None, exclude_if=lambda call: call is None)
    """In place of the two fields above; the call of a tool that this folder lacks has no result to compare."""

    @model_validator(mode="before")
    @classmethod
    def _read_expected_call(cls, row: Any) -> Any:
        if not isinstance(row, dict) or row.get("expected_call") is None or "expected_tool" in row:
            return row
        call = ExpectedCall.model_validate(row["expected_call"])
        return {**row, "expected_tool": call.name, "expected_arguments": call.arguments}

    def arguments(self) -> ConversionRequest | dict[str, Any]:
        """Return the expected arguments as the tool reads them; unchanged if this folder lacks the tool."""
        tool = TOOLS.get(self.expected_tool)
        return self.expected_arguments if tool is None else tool.model_validate(self.expected_arguments)

    @model_validator(mode="after")
    def arguments_fit_the_tool(self) -> Self:
        if self.expected_tool not in TOOLS and self.expected_call is None:
            raise ValueError(f"there is no tool {self.expected_tool!r}; there are {', '.join(TOOLS)}")
        self.arguments()
        return self


class ConversionVerifyRequest(ConversionRunRequest, BaseVerifyRequest):
    pass


class ConversionVerifyResponse(ConversionVerifyRequest, BaseMultiRewardVerifyResponse):
    expected_answer: float | None
    """The result of the expected call; None if this folder lacks its tool."""
    told_answer: float | None


class ConversionServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: ConversionConfig

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/convert_length")(self.convert_length)
        app.post("/convert_mass")(self.convert_mass)
        app.post("/convert_temperature")(self.convert_temperature)
        return app

    async def convert_length(self, body: ConvertLengthRequest) -> ConversionResponse:
        """Convert a length or distance."""
        return ConversionResponse(value=convert(body), unit=body.to_unit)

    async def convert_mass(self, body: ConvertMassRequest) -> ConversionResponse:
        """Convert a mass or weight."""
        return ConversionResponse(value=convert(body), unit=body.to_unit)

    async def convert_temperature(self, body: ConvertTemperatureRequest) -> ConversionResponse:
        """Convert a temperature."""
        return ConversionResponse(value=convert(body), unit=body.to_unit)

    async def verify(self, body: ConversionVerifyRequest) -> ConversionVerifyResponse:
        """Grade three steps, each of which counts only after the one before it."""
        call, arguments = only_call(body.response.output), body.arguments()
        expected = None if isinstance(arguments, dict) else convert(arguments)
        answer = final_number(body.response.output)
        right_tool = call is not None and normalize_tool_name(call.name) == body.expected_tool
        right_arguments = call is not None and right_tool and is_same_call(call, body.expected_tool, arguments)
        components = {"right_tool": float(right_tool), "right_arguments": float(right_arguments)}
        if expected is not None:
            distance = math.inf if answer is None else abs(answer - expected)
            components["answered"] = float(right_arguments and distance <= self.config.tolerance + 1e-9)
        return ConversionVerifyResponse(
            **dict(body),
            expected_answer=expected,
            told_answer=answer,
            reward_components=components,
            reward_weights=self.config.weights.of(components),
            reward=self.config.weights.reward(components),
        )

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        components = [rollout["reward_components"] for task in tasks for rollout in task]
        values = {name: [one[name] for one in components if name in one] for name in Weights.model_fields}
        return {f"mean/reward_components/{name}": fmean(numbers) for name, numbers in values.items() if numbers}

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in agent_metrics.items() if name.startswith("mean/reward")}


if __name__ == "__main__":
    ConversionServer.run_webserver()
