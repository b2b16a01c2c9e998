"""Ask the running weather agent one question and show what was said.

Start the servers first (`gym env start …`), then: python responses_api_agents/simple_agent/client.py
"""

import asyncio
import json
import sys

from aiohttp import ClientResponseError

from nemo_gym.errors import GymError
from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import ServerClient, get_response_json, raise_for_status

AGENT = "example_single_tool_call_simple_agent"
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


async def ask(agent: str) -> str:
    client = ServerClient.load_from_global_config()
    reply = await client.post(server_name=agent, url_path="/v1/responses", json=QUESTION)
    await raise_for_status(reply)
    response = await get_response_json(reply)
    return json.dumps(response["output"], indent=4, ensure_ascii=False)


def main(arguments: list[str]) -> int:
    """Ask the agent named on the command line, or the weather example's."""
    try:
        text = asyncio.run(ask(arguments[0] if arguments else AGENT))
    except (GymError, ClientResponseError, ValueError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    sys.stdout.write(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
