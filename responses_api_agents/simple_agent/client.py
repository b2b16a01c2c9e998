"""Ask a running agent one question and print the conversation.

Start the servers first (`gym env start …`), then: python responses_api_agents/simple_agent/client.py [AGENT [RUN]]

Without RUN (PID, head port or HOST:PORT) the only registered run is used. Without AGENT the agent of the weather
example is asked, or the only agent of the run.
"""

import asyncio
import json
import sys
from collections.abc import Mapping

from aiohttp import ClientResponseError

from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import GymError
from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.serve.run_registry import NoRunFound, choose_run
from nemo_gym.server_utils import ServerClient, get_response_json, raise_for_status

AGENTS = ("example_single_tool_call_simple_agent", "simple_weather_simple_agent", "simple_agent")
"""The agent of the weather example, under its current and earlier names."""
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


def connect(run: str | None) -> ServerClient:
    """Connect to a registered run, or to the head server of the configuration if none is registered."""
    try:
        chosen = choose_run(run)
    except NoRunFound:
        return ServerClient.load_from_global_config()
    return ServerClient.load_from_global_config(BaseServerConfig(host=chosen.host, port=chosen.port))


def default_agent(client: ServerClient) -> str:
    """Return the agent to ask if the command line names none.

    Raises:
        ValueError: there are several.
    """
    blocks = client.global_config_dict.items()
    agents = [str(name) for name, block in blocks if isinstance(block, Mapping) and "responses_api_agents" in block]
    example = next((name for name in AGENTS if name in agents), None)
    if example or not agents:
        return example or AGENTS[0]
    if len(agents) > 1:
        raise ValueError(f"which agent? There are {', '.join(agents)}")
    return agents[0]


async def ask(agent: str | None, run: str | None = None) -> str:
    """Send the question to the agent and return its output as JSON."""
    client = connect(run)
    name = agent or default_agent(client)
    reply = await client.post(server_name=name, url_path="/v1/responses", json=QUESTION)
    await raise_for_status(reply)
    response = await get_response_json(reply)
    return json.dumps(response["output"], indent=4, ensure_ascii=False)


def main(arguments: list[str]) -> int:
    """Ask the agent named on the command line, or the default agent."""
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
