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
    """Return turn `number` of the model for a client that offers `tools`."""
    from resources_servers.coding_task import scripted_solver  # not in the environment of agents_sdk.py

    return scripted_solver.next_turn(
        number, tools, conversation, commands=COMMANDS, final_text=FINAL_TEXT, thought=THOUGHT
    )
