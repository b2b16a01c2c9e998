"""A small coding agent with the package `openai-agents`: `python openai_agents.py DIALECT TASK_FILE`, in the workspace.

DIALECT is `responses` or `chat`. The address and key of the model are in OPENAI_BASE_URL and OPENAI_API_KEY, the
largest number of turns is in MAX_TURNS. The final text is printed.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from agents import Agent, ModelSettings, OpenAIProvider, RunConfig, Runner, function_tool, set_tracing_disabled

COMMAND_SECONDS = 300
OUTPUT_CHARACTERS = 30_000


@function_tool
def bash(command: str) -> str:
    """Run a command in the workspace."""
    try:
        result = subprocess.run(
            command,
            shell=True,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"The command was ended after {COMMAND_SECONDS} seconds."
    return (result.stdout + result.stderr)[-OUTPUT_CHARACTERS:]


async def run_agent(dialect: str, task: str) -> str:
    """Run the agent on a task and return its final text."""
    set_tracing_disabled(True)
    provider = OpenAIProvider(use_responses=dialect == "responses")
    agent = Agent(name="coder", tools=[bash], model="model", model_settings=ModelSettings(include_usage=True))
    config = RunConfig(model_provider=provider)
    turns = int(os.environ["MAX_TURNS"])
    result = await Runner.run(agent, task, max_turns=turns, run_config=config)
    return str(result.final_output)


if __name__ == "__main__":
    final_text = asyncio.run(run_agent(sys.argv[1], Path(sys.argv[2]).read_text()))
    sys.stdout.write(f"{final_text}\n")
