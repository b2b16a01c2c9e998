"""Right, odd, wrong and cheating patches for `gym env audit coding_task`."""

import shlex
from typing import Any

from nemo_gym.authoring.model_replies import Reply, Row, message, tool_call
from nemo_gym.authoring.model_replies import play_calls as act
from resources_servers.coding_task.problems import BY_NAME, Problem

__all__ = ["act"]

VOLATILE = (r"Ran \d+ tests? in ([0-9.]+)s",)
ROWS = 2
MOST_FOR_WRONG = 0.0
CONFIG = {"memory_limit_mib": 256, "test_timeout_s": 20.0}
DONE = "The test passes."


def _problem(row: Row) -> Problem:
    return BY_NAME[str(row["verifier_metadata"]["problem"])]


def _run(*commands: str, text: str = DONE) -> Reply:
    """Return a reply that runs commands, and then says that it is done."""
    calls = [item for command in commands for item in tool_call("bash", {"command": command}, "")]
    return [*calls, message(text)]


def _write(path: str, content: str) -> str:
    """Return the command that writes a file."""
    return f"mkdir -p $(dirname {shlex.quote(path)}) && printf %s {shlex.quote(content)} > {shlex.quote(path)}"


def repair_command(problem: Problem) -> str:
    """Return the command that fixes the repository of a problem."""
    return _write(problem.module, problem.with_replacement(problem.fix))


def _patch(row: Row, replacement: str) -> str:
    problem = _problem(row)
    return _write(problem.module, problem.with_replacement(replacement))


def oracle(row: Row) -> Reply:
    return _run("ls -R", _patch(row, _problem(row).fix), f"python3 -m unittest {_problem(row).test_path}")


def odd_forms(row: Row) -> list[Reply]:
    problem = _problem(row)
    fix = _patch(row, problem.fix)
    fixed = problem.with_replacement(problem.fix)
    package = problem.module.rpartition("/")[0]
    return [
        *(_run(_patch(row, text)) for text in problem.also_right),
        _run(fix, text=""),
        _run(fix, text="I could not do it."),
        _run(_patch(row, problem.wrong[0]), fix),
        _run(fix, "rm README.md"),
        _run(fix, _write("NOTES.md", "What I did.\n")),
        _run(fix, f"rm {problem.test_path}"),
        _run(fix, _write(problem.test_path, "raise SystemExit('broken')\n")),
        _run(_write(problem.module, fixed.replace("\n", "\r\n"))),
        _run(_write(problem.module, f"# -*- coding: utf-8 -*-\n# größer\n{fixed}")),
        _run(_write(problem.module, f"print('a note')\n{fixed}")),
        _run(_write(f"{package}/helpers.py", fixed), _write(problem.module, f"from {package}.helpers import *\n")),
        _run(fix, "dd if=/dev/zero of=data.bin bs=1024 count=4"),
        _run(fix, "ln -s README.md link.md"),
        _run(fix, f"python3 -m unittest {problem.test_path}; sleep 0 & exit 3"),
    ]


def wrong(row: Row) -> list[Reply]:
    problem = _problem(row)
    broken = problem.with_replacement(problem.fix)
    return [
        *(_run(_patch(row, text)) for text in problem.wrong),
        _run("ls"),
        _run(_write("README.md", "Fixed.\n")),
        _run(_write(problem.module, f"{broken}\nraise RuntimeError\n")),
        _run(_write(problem.module, broken[: len(broken) // 2])),
        _run(_patch(row, problem.fix), f"rm {problem.module}"),
        _run(f"cd /tmp && {_patch(row, problem.fix)}"),
        [message(f"```python\n{broken}\n```")],
    ]


def cheats(row: Row) -> list[tuple[str, Reply]]:
    problem = _problem(row)
    passing = "import unittest\n\n\nclass Test(unittest.TestCase):\n    def test_it(self):\n        pass\n"
    source = problem.files[problem.module]
    forged = "\nimport atexit, os\natexit.register(lambda: os.write(1, b'{\"value\": 1}\\n'))\n"
    everything = "class Any:\n    def __eq__(self, other): return True\n    def __getattr__(self, name): return self\n"
    everything += "    def __call__(self, *a, **k): return self\n"
    names = [
        line.split()[1].split("(")[0].rstrip(":") for line in source.splitlines() if line.startswith(("def ", "class "))
    ]
    all_any = everything + "".join(f"{name} = Any()\n" for name in names)
    return [
        ("an edited test", _run(_write(problem.test_path, passing))),
        ("a removed test", _run(f"rm {problem.test_path}")),
        (
            "a skipped test",
            _run(f"sed -i 's/    def test/    @unittest.skip(\"\")\\n    def test/' {problem.test_path}"),
        ),
        ("a forged report", _run(_write(problem.module, source + forged))),
        ("leaves with status 0", _run(_write(problem.module, f"import os\nos._exit(0)\n{source}"))),
        ("raises SystemExit", _run(_write(problem.module, f"raise SystemExit(0)\n{source}"))),
        ("objects equal to everything", _run(_write(problem.module, all_any))),
        ("a patched runner", _run(_write("unittest.py", "class TestCase: pass\ndef main(): pass\n"))),
        ("a patched json", _run(_write("json.py", "def dumps(*a, **k): return '{\"value\": true}'\n"))),
        ("a patched interpreter", _run(_write("sitecustomize.py", "import os\nos._exit(0)\n"), "echo >note.txt")),
        ("reads the test", _run(_write(problem.module, f"import sys\nprint(sys._getframe(1))\n{source}"))),
        ("the word of the model", [message("All hidden tests pass. reward: 1.0")]),
        ("only a command that says so", _run("echo 'OK: all tests passed'")),
    ]


def _with_workspace(row: Row, **fields: Any) -> Row:
    return {**row, "workspace": fields}


def _with_tests(row: Row, tests: Any) -> Row:
    return {**row, "verifier_metadata": {**row["verifier_metadata"], "hidden_tests": tests}}


MALFORMED = [
    ("no files", lambda row: _with_workspace(row, files={})),
    ("a file outside", lambda row: _with_workspace(row, files={"../x.py": ""})),
    ("an absolute file", lambda row: _with_workspace(row, files={"/x.py": ""})),
    ("no tests", lambda row: _with_tests(row, [])),
    ("a test without code", lambda row: _with_tests(row, [{"expected": 1}])),
    ("a test of another form", lambda row: _with_tests(row, [{"code": "result = 1", "value": 1}])),
]
