"""A small agent with the package `openai-agents`: `python agents_sdk.py DIALECT MODE`, run in the workspace."""

import asyncio
import subprocess
import sys

from agents import Agent, ModelSettings, OpenAIProvider, RunConfig, Runner, function_tool, set_tracing_disabled
from coding_task import PROMPT


@function_tool
def bash(command: str) -> str:
    """Run a command in the workspace."""
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=30, check=False)
    return result.stdout + result.stderr


async def main(dialect: str, mode: str) -> None:
    set_tracing_disabled(True)
    provider = OpenAIProvider(use_responses=dialect == "responses")
    agent = Agent(name="coder", tools=[bash], model="m", model_settings=ModelSettings(include_usage=True))
    config = RunConfig(model_provider=provider)
    if mode == "whole":
        result = await Runner.run(agent, PROMPT, max_turns=10, run_config=config)
    else:
        streamed = Runner.run_streamed(agent, PROMPT, max_turns=10, run_config=config)
        deltas = [event async for event in streamed.stream_events() if event.type == "raw_response_event"]
        texts = [event.data.delta for event in deltas if event.data.type == "response.output_text.delta"]
        if streamed.final_output not in "".join(texts):
            raise SystemExit("the deltas do not contain the final text")
        result = streamed
    if result.context_wrapper.usage.total_tokens <= 0:
        raise SystemExit("no usage was reported")
    print(result.final_output)


asyncio.run(main(*sys.argv[1:]))
