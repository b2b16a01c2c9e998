"""A scripted model that solves the tasks of this folder with the shell tool of any agent, to test agents offline.

    gym eval run --resources-server coding_task --model-type scripted_model \\
        ++policy_model.responses_api_models.scripted_model.function=resources_servers.coding_task.scripted_solver:play
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from resources_servers.coding_task.audit import repair_command
from resources_servers.coding_task.problems import BY_NAME

SHELL_TOOLS = ("bash", "shell", "exec_command", "shell_command", "local_shell", "run_shell_command", "run_command")
FINAL_TEXT = "Fixed: the test passes."
SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""What mini-swe-agent expects as output of the last command; it asks for it in its prompt."""
_TEST = re.compile(r"test_([a-z_]+)\.py")


def play(scene: Any) -> dict[str, Any]:
    """Return the next turn of the model: a script of `scripted_model`."""
    conversation = json.dumps(scene.conversation, default=str)
    name = next((name for name in _TEST.findall(conversation) if name in BY_NAME), None)
    if name is None:
        return {"text": "There is no task."}
    problem = BY_NAME[name]
    commands = (
        f"cat README.md {problem.module}",
        repair_command(problem),
        f"python3 -m unittest {problem.test_path.removesuffix('.py')}",
    )
    return next_turn(scene.number, scene.tools, conversation, commands=commands, final_text=FINAL_TEXT)


def next_turn(
    number: int, tools: Sequence[Any], conversation: str, *, commands: Sequence[str], final_text: str, thought: str = ""
) -> dict[str, Any]:
    """Return turn `number` for an agent that offers `tools`: a command, or the final text.

    A request without tools is a side task of the agent, for example a title for the conversation.
    """
    tool = shell_tool(tools)
    if tool is None:
        return {"text": "A title"}
    if number < len(commands):
        turn: dict[str, Any] = {"tool_calls": [shell_call(tool, commands[number])]}
        return turn if number or not thought else {"reasoning": thought, "text": "I look at the file.", **turn}
    if SUBMIT in conversation:
        return {"tool_calls": [shell_call(tool, f"echo {SUBMIT} && echo '{final_text}'")]}
    return {"text": final_text}


def shell_tool(tools: Sequence[Any]) -> dict[str, Any] | None:
    """Return the name and schema of the tool that runs a command; None if the agent offers none."""
    offered: dict[str, dict[str, Any]] = {}
    for tool in tools:
        data = tool if isinstance(tool, dict) else tool.model_dump()
        function = data.get("function") or data
        if function.get("name"):
            offered[function["name"].lower()] = {"name": function["name"], "schema": function.get("parameters") or {}}
    return next((offered[name] for name in SHELL_TOOLS if name in offered), None)


def shell_call(tool: dict[str, Any], command: str) -> dict[str, Any]:
    """Return a call of a tool with a command; other required fields get a neutral value."""
    properties = tool["schema"].get("properties") or {}
    name = next((each for each in ("command", "cmd") if each in properties), "command")
    kind = (properties.get(name) or {}).get("type")
    arguments: dict[str, Any] = {name: ["bash", "-lc", command] if kind == "array" else command}
    for field in tool["schema"].get("required") or ():
        if field not in arguments:
            schema = properties.get(field) or {}
            arguments[field] = {"boolean": False, "integer": 60, "number": 60}.get(schema.get("type"), "run a command")
    return {"name": tool["name"], "arguments": arguments}
