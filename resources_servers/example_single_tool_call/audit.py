"""Replies for `gym env audit example_single_tool_call`: any reply earns the reward, broken rows are refused."""

from typing import Any

from nemo_gym.authoring.model_replies import Reply, message, tool_call
from nemo_gym.authoring.model_replies import play_calls as act  # noqa: F401 - part of the interface

MOST_FOR_A_CHEAT = 1.0  # the reward is constant, and the README says so
CITIES = ("San Francisco", "Lisbon", "Oslo", "Utrecht", "Kyoto")


def oracle(row: dict[str, Any]) -> Reply:
    question = row["responses_create_params"]["input"][-1]["content"]
    city = next((one for one in CITIES if one in question), "Lima")
    weather = {"city": city, "weather_description": f"The weather in {city} is cold."}
    return [*tool_call("get_weather", {"city": city}, weather), message(f"It is cold in {city}; take something warm.")]


def odd_forms(row: dict[str, Any]) -> list[Reply]:  # noqa: ARG001
    return [f"It is cold, {number} times asked." for number in range(20)]
