"""Try every program of the catalogue with its real package: `python -m tools.harnesses [NAME ...] [--write]`.

Each program is installed, and then run in its box with a scripted model: it must solve a task of `coding_task` with
every call in the conversation, end as a limit after two model calls, and leave no process when the rollout is cancelled
while a tool hangs. --write puts the results into docs/agents.md.
"""

import argparse
import asyncio
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from nemo_gym.errors import ConfigError
from nemo_gym.launch.programs import Programs, install_programs
from nemo_gym.launch.venv_build import InstallFailed
from nemo_gym.sandbox.providers.local import probe
from resources_servers.coding_task.scripted_solver import FINAL_TEXT, shell_call, shell_tool
from responses_api_agents.harness_agent.tests.bench import harness_agent, run_task

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "responses_api_agents" / "harness_agent" / "configs"
PAGE = ROOT / "docs" / "agents.md"
BEGIN, END = "<!-- table: python3 dev.py harnesses -->", "<!-- end of table -->"
PROGRAM_SECONDS = 600.0
"""Maximum time of all checks of one program; they take 10 to 60 s on an idle machine."""
WAIT_SECONDS = 120.0
MARK_VARIABLE = "GYM_HARNESS_MARK"
CALLS = 4
"""Model calls that solve the task."""


@dataclass(frozen=True)
class HarnessResult:
    """What was seen of one program."""

    name: str
    problem: str | None = None
    """None if all checks hold."""
    is_skipped: bool = False
    first_call_seconds: float = 0.0
    memory_mib: float = 0.0


def catalogue() -> dict[str, dict[str, Any]]:
    """Return the server block of every program by name."""
    trees = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(CONFIGS.glob("*.yaml"))}
    return {name: tree[name]["responses_api_agents"]["harness_agent"] for name, tree in trees.items()}


def hang(scene: Any) -> dict[str, Any]:
    """Return the turn of a model that calls a tool which never ends; a script of `scripted_model`."""
    tool = shell_tool(scene.tools)
    return (
        {"tool_calls": [shell_call(tool, f"sleep 86400; echo {os.environ[MARK_VARIABLE]}")]}
        if tool
        else {"text": "Title"}
    )


async def check_program(name: str, block: Mapping[str, Any]) -> HarnessResult:
    """Install a program and check it."""
    programs = Programs.model_validate(block["programs"])
    try:
        await install_programs(programs, programs.folder(), name)
    except (InstallFailed, ConfigError) as error:
        return HarnessResult(name, str(error).splitlines()[0], is_skipped=True)
    settings = {"programs": block["programs"], "timeout_s": PROGRAM_SECONDS}
    async with harness_agent(block["harness"], **settings) as agent:
        solved = await run_task(agent)
    async with harness_agent(block["harness"], max_steps=2, **settings) as agent:
        limited = await run_task(agent)
    left = await _cancel_while_a_tool_hangs(block["harness"], settings)
    problems = [*_problems_of_solution(solved), *_problems_of_limit(limited)]
    problems += [f"after a cancellation {left} processes are left"] if left else []
    facts = solved["harness"]
    seconds, memory = facts["first_call_seconds"] or 0.0, facts["peak_memory_mib"] or 0.0
    return HarnessResult(name, "; ".join(problems) or None, first_call_seconds=seconds, memory_mib=memory)


def _problems_of_solution(result: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the rollout that should solve the task."""
    facts, output = result["harness"], result["response"]["output"]
    kinds = [item["type"] for item in output]
    text = json.dumps(output[-1:])
    checks = {
        f"the reward is {result.get('reward')}: {facts['stdout'][-300:]!r} {facts['stderr'][-300:]!r}": (
            result.get("reward") == 1.0
        ),
        f"{facts['answered_model_calls']} of {facts['model_calls']} calls succeeded, expected {CALLS}": (
            facts["answered_model_calls"] == facts["model_calls"] >= CALLS
        ),
        f"{facts['unread_model_calls']} calls cannot be read": not facts["unread_model_calls"],
        f"the conversation is {kinds}": kinds.count("function_call") >= CALLS - 1
        and kinds.count("function_call_output") >= CALLS - 1,
        f"the final text is {text[:300]}": FINAL_TEXT in text,
    }
    return [problem for problem, holds in checks.items() if not holds]


def _problems_of_limit(result: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the rollout that should end after two model calls."""
    which, answered = result.get("_ng_failure"), result["harness"]["answered_model_calls"]
    if which == {"which": "steps"} and answered == 2:
        return []
    return [f"with two model calls allowed it ended with {which} after {answered}"]


async def _cancel_while_a_tool_hangs(harness: Mapping[str, Any], settings: Mapping[str, Any]) -> int:
    """Cancel a rollout during a tool call; return the number of processes that are left."""
    mark = f"mark-{secrets.token_hex(8)}"
    os.environ[MARK_VARIABLE] = mark
    async with harness_agent(harness, model={"function": "tools.harnesses:hang"}, **settings) as agent:
        rollout = asyncio.create_task(run_task(agent))
        await asyncio.to_thread(_wait_for_mark, mark, rollout)
        rollout.cancel()
        await asyncio.wait({rollout})
        return await asyncio.to_thread(_marked_processes, mark)


def _wait_for_mark(mark: str, rollout: "asyncio.Task[Any]") -> None:
    """Wait until the tool runs, or the rollout ends without it."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not _marked_processes(mark) and not rollout.done():
        if time.monotonic() > deadline:
            raise TimeoutError("the program did not call the tool")
        time.sleep(0.05)


def _marked_processes(mark: str) -> int:
    """Return the number of processes with a mark in their command line."""
    count = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                count += mark.encode() in (entry / "cmdline").read_bytes()
            except OSError:
                continue
    return count


def check_in_process(name: str) -> HarnessResult:
    """Check one program in a separate process, because its model server and agent belong to one event loop."""
    command = [sys.executable, "-m", "tools.harnesses", "--one", name]
    try:
        process = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False
        )
        return HarnessResult(**json.loads(process.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return HarnessResult(name, f"not done after {PROGRAM_SECONDS:g} s")
    except (IndexError, ValueError, TypeError):
        return HarnessResult(name, process.stderr.strip()[-600:] or f"exit status {process.returncode}")


def table_lines(results: Sequence[HarnessResult]) -> list[str]:
    """Return the table of docs/agents.md."""
    lines = ["| `--agent-type` | package | speaks | licence | first call | memory |", "|---|---|---|---|---:|---:|"]
    blocks = catalogue()
    for result in results:
        harness, programs = blocks[result.name]["harness"], Programs.model_validate(blocks[result.name]["programs"])
        package = programs.packages.split(", ")[0]
        link = f"[{package}]({harness['page']})"
        figures = f"{result.first_call_seconds:.0f} s | {result.memory_mib:.0f} MiB"
        lines.append(f"| `{result.name}` | {link} | {harness['dialect']} | {harness['licence']} | {figures} |")
    return lines


def write_table(results: Sequence[HarnessResult]) -> None:
    """Replace the table of docs/agents.md."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text("\n".join([before + BEGIN, "", *table_lines(results), "", END + after]), encoding="utf-8")


def main() -> int:
    """Check programs; return 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python3 dev.py harnesses", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs to check (default: all)")
    parser.add_argument("--write", action="store_true", help="write the table of docs/agents.md")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(asdict(asyncio.run(check_program(args.one, catalogue()[args.one])))))
        return 0
    isolation = probe()
    if not isolation.available:
        print(f"skipped: programs cannot be isolated here: {isolation.problem}")
        return 0
    names = args.names or list(catalogue())
    if unknown := sorted(set(names) - set(catalogue())):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(catalogue())}")
    results = []
    with ThreadPoolExecutor(2) as pool:
        for result in pool.map(check_in_process, names):
            state = "skipped" if result.is_skipped else "failed " if result.problem else "done   "
            figures = f"first call {result.first_call_seconds:.1f} s, {result.memory_mib:.0f} MiB"
            print(f"{state} {result.name}: {result.problem or figures}", flush=True)
            results.append(result)
    if args.write and not any(result.problem for result in results) and not args.names:
        write_table(results)
    return int(any(result.problem and not result.is_skipped for result in results))


if __name__ == "__main__":
    sys.exit(main())
