"""Ask a running agent one question and show what was said.

Start the servers first (`gym env start …`), then: python responses_api_agents/simple_agent/client.py [AGENT [RUN]]

The run is found by itself; RUN (a process id, its head's port, or HOST:PORT) chooses one of several. Without AGENT it
is the weather example's, or the only one there is.
"""

import asyncio
import json
import sys
from collections.abc import Mapping

from aiohttp import ClientResponseError

from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import GymError
from nemo_gym.launch.registry import NoRunFound, choose_run
from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import ServerClient, get_response_json, raise_for_status

AGENTS = ("example_single_tool_call_simple_agent", "simple_weather_simple_agent", "simple_agent")
"""The weather example's, under the names it has had."""
QUESTION = NeMoGymResponseCreateParamsNonStreaming(
    input=[
        {"role": "developer", "content": "You are a helpful personal assistant."},
        {"role": "user", "content": "Going out in San Francisco tonight. What should I wear?"},
    ],
    tools=[
        {
            "type": "function",
            "name": "get_weather",
            "description": "Tell the weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
            "strict": True,
        }
    ],
)


def connected(run: str | None) -> ServerClient:
    """A client for the run that is meant; for the head of the configuration when none is registered here."""
    try:
        found = choose_run(run)
    except NoRunFound:
        return ServerClient.load_from_global_config()
    return ServerClient.load_from_global_config(BaseServerConfig(host=found.host, port=found.port))


def chosen_agent(client: ServerClient) -> str:
    """The agent to ask when nobody named one.

    Raises:
        ValueError: it is not clear which.
    """
    blocks = client.global_config_dict.items()
    agents = [str(name) for name, block in blocks if isinstance(block, Mapping) and "responses_api_agents" in block]
    known = next((name for name in AGENTS if name in agents), None)
    if known or not agents:
        return known or AGENTS[0]
    if len(agents) > 1:
        raise ValueError(f"which agent? There are {', '.join(agents)}")
    return agents[0]


async def ask(agent: str | None, run: str | None = None) -> str:
    client = connected(run)
    name = agent or chosen_agent(client)
    reply = await client.post(server_name=name, url_path="/v1/responses", json=QUESTION)
    await raise_for_status(reply)
    response = await get_response_json(reply)
    return json.dumps(response["output"], indent=4, ensure_ascii=False)


def main(arguments: list[str]) -> int:
    """Ask the agent named on the command line, or the one there is."""
    agent, run = [*arguments, None, None][:2]
    try:
        text = asyncio.run(ask(agent, run))
    except (GymError, ClientResponseError, ValueError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    sys.stdout.write(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
