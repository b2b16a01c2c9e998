"""The tool that runs real agent programs: pins, turns and table. The programs run in `python3 dev.py clients`."""

import json
import os
import py_compile
import re
from pathlib import Path

import pytest

from resources_servers.coding_task.scripted_solver import SUBMIT
from tools.clients.catalog import CLIENTS, Client
from tools.clients.coding_task import COMMANDS, FINAL_TEXT, create_workspace, is_solved, next_turn
from tools.clients.runner import ClientResult, ClientRun
from tools.clients.servers import SERVERS
from tools.clients.table import table_lines

FOLDER = Path(__file__).parent.parent / "tools" / "clients"


def tool(name: str, **properties: str) -> dict:
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"type": "function", "name": name, "parameters": {**schema, "required": list(properties)}}


def test_every_npm_package_is_pinned_by_version_and_hash_without_a_host() -> None:
    """A package that changes, or a registry that answers something else, must not run on our machines."""
    pins = json.loads((FOLDER / "package.json").read_text())["dependencies"]
    lock = json.loads((FOLDER / "package-lock.json").read_text())["packages"]

    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in pins.values())
    assert {client.package for client in CLIENTS if client.is_npm} <= pins.keys()
    for name, entry in lock.items():
        assert "resolved" not in entry
        assert not name or entry.get("integrity", "").startswith("sha512-") or entry.get("inBundle"), name


@pytest.mark.parametrize(
    ("offered", "arguments"),
    [
        (
            tool("Bash", command="string", description="string"),
            {"command": COMMANDS[0], "description": "run a command"},
        ),
        (tool("exec_command", cmd="string"), {"cmd": COMMANDS[0]}),
        (tool("shell", command="array"), {"command": ["bash", "-lc", COMMANDS[0]]}),
        ({"type": "function", "function": tool("bash", command="string")}, {"command": COMMANDS[0]}),
    ],
)
def test_the_model_calls_the_shell_tool_of_the_client(offered: dict, arguments: dict) -> None:
    """Each client names its tool and its fields differently."""
    other = tool("read", path="string")

    turn = next_turn(0, [other, offered], "")

    assert turn["tool_calls"][0]["arguments"] == arguments
    assert next_turn(len(COMMANDS), [offered], "") == {"text": FINAL_TEXT}
    assert SUBMIT in json.dumps(next_turn(len(COMMANDS), [offered], f"print {SUBMIT}"))
    assert next_turn(0, [other], "") == {"text": "A title"}, "a side task of the client has no shell"


def test_only_a_fixed_workspace_is_solved(tmp_path: Path) -> None:
    """A program that says that it is done may not have done it."""
    create_workspace(tmp_path / "w")

    assert not is_solved(tmp_path / "w")
    (tmp_path / "w/calc.py").write_text("def add(a, b):\n    return a + b\n")
    assert is_solved(tmp_path / "w")


def test_byte_code_that_a_program_left_does_not_hide_its_fix(tmp_path: Path) -> None:
    """A program that runs the test before its fix leaves byte code of the wrong file, of the same size and second."""
    create_workspace(tmp_path / "w")
    wrong = tmp_path / "w/calc.py"
    py_compile.compile(str(wrong), invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)
    times = wrong.stat()
    wrong.write_text(wrong.read_text().replace("a - b", "a + b"))
    os.utime(wrong, ns=(times.st_atime_ns, times.st_mtime_ns))

    assert is_solved(tmp_path / "w")


def test_the_table_has_a_row_for_each_dialect_and_shows_failures() -> None:
    """A failed combination must be visible in the page."""
    client = Client("c", "no-such-package", ("Chat", "Responses whole"), CLIENTS[0].prepare)
    results = [
        ClientResult(ClientRun(client, "Chat", SERVERS[0]), 1.0, None),
        ClientResult(ClientRun(client, "Chat", SERVERS[1]), 1.0, "no"),
        ClientResult(ClientRun(client, "Responses whole", SERVERS[2]), 1.0, None),
    ]

    assert table_lines(results)[2:] == [
        "| c | ? | Chat streamed | completes | fails | – |",
        "| c | ? | Responses whole | – | – | completes |",
    ]
