"""The coding task: a workspace with a bug, and the model turns that find it, fix it, test it and say so."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PROMPT = (
    "The function add in calc.py is wrong. Read the file, fix it, run python3 test_calc.py, and say when it passes."
)
FINAL_TEXT = "Fixed: add now returns the sum, and test_calc.py passes."
THOUGHT = "I read the file first."
COMMANDS = ("cat calc.py", "sed -i 's/a - b/a + b/' calc.py", "python3 test_calc.py")
TURNS = len(COMMANDS) + 1
TEST_SECONDS = 300.0
"""Maximum time of the test; it takes 0.1 s, but a machine may be busy."""
SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""What mini-swe-agent expects as output of the last command; it asks for it in its prompt."""

_SHELL_TOOLS = ("bash", "shell", "exec_command", "shell_command", "local_shell", "run_shell_command", "run_command")


def create_workspace(folder: Path) -> None:
    """Write the files of the task."""
    folder.mkdir(parents=True)
    (folder / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (folder / "test_calc.py").write_text("from calc import add\n\nassert add(2, 3) == 5\nprint('passed')\n")


def is_solved(folder: Path) -> bool:
    """Return whether the test of a workspace passes.

    Byte code in the workspace is not used: that of the wrong `calc.py` stands for a fix of the same size and second.
    """
    with tempfile.TemporaryDirectory(prefix="gym-byte-code-") as byte_code:
        command = [sys.executable, "-X", f"pycache_prefix={byte_code}", "test_calc.py"]
        test = subprocess.run(command, cwd=folder, capture_output=True, timeout=TEST_SECONDS, check=False)
    return test.returncode == 0 and b"passed" in test.stdout


def play(scene: Any) -> dict[str, Any]:
    """Return the next turn of the model: a script of `scripted_model`."""
    return next_turn(scene.number, scene.tools, json.dumps(scene.conversation, default=str))


def next_turn(number: int, tools: list[Any], conversation: str) -> dict[str, Any]:
    """Return turn `number` for a client that offers `tools`: a command, or the final text.

    A request without tools is a side task of the client, for example a title for the conversation.
    """
    tool = _shell_tool(tools)
    if tool is None:
        return {"text": "Fix add"}
    if number < len(COMMANDS):
        turn: dict[str, Any] = {"tool_calls": [_call(tool, COMMANDS[number])]}
        return turn if number else {"reasoning": THOUGHT, "text": "I look at the file.", **turn}
    if SUBMIT in conversation:
        return {"tool_calls": [_call(tool, f"echo {SUBMIT} && echo '{FINAL_TEXT}'")]}
    return {"text": FINAL_TEXT}


def _shell_tool(tools: list[Any]) -> dict[str, Any] | None:
    """Return the name and schema of the tool that runs a command; None if the client offers none."""
    offered: dict[str, dict[str, Any]] = {}
    for tool in tools:
        data = tool if isinstance(tool, dict) else tool.model_dump()
        function = data.get("function") or data
        if function.get("name"):
            offered[function["name"].lower()] = {"name": function["name"], "schema": function.get("parameters") or {}}
    return next((offered[name] for name in _SHELL_TOOLS if name in offered), None)


def _call(tool: dict[str, Any], command: str) -> dict[str, Any]:
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
