"""Generate the example data of the server folders: `python -m tools.examples [NAME ...] [--check]`.

data/example.jsonl holds five rows of the folder's generate.py with seed 0, example_metrics.json the metrics that `gym
dataset collate` computes for them, and example_rollouts.jsonl rollouts of a scripted model: the oracle of the folder's
audit.py for four rows, a wrong answer for the last. --check writes nothing and exits 1 if a file differs.
"""

import argparse
import difflib
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from nemo_gym.authoring.audit import read_expectations
from nemo_gym.authoring.model_replies import Reply
from nemo_gym.catalog.atomic_files import whole_file
from nemo_gym.catalog.components import datasets_of, load_tree
from nemo_gym.config.instances import instances_of
from nemo_gym.config.schema_datasets import DatasetConfig
from nemo_gym.config.trees import Tree
from nemo_gym.data.collate import collate
from nemo_gym.data.row_metrics import compare_metrics, encode_metrics
from nemo_gym.data.sources import DatasetSource
from nemo_gym.errors import ConfigError, GymError
from responses_api_models.scripted_model.app import turns_in_items

ROOT = Path(__file__).resolve().parents[1]
SERVERS = ROOT / "resources_servers"
EXAMPLES = 5
WRONG_ROW = EXAMPLES - 1
"""The row that gets a wrong answer."""
TIMING_FIELDS = ("_ng_phases", "_ng_seconds", "_ng_turn_seconds")
MAX_SECONDS = 300.0
GYM = "import sys; from nemo_gym.cli.main import main; sys.exit(main())"

Row = dict[str, Any]
Files = dict[str, bytes]
"""File name -> content."""


@dataclass(frozen=True)
class ExampleAgent:
    """The agent of a folder's configuration that owns the example dataset, and the configuration tree."""

    name: str
    block: dict[str, Any]
    dataset: dict[str, Any]
    tree: Tree

    @property
    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = next(iter(self.block["responses_api_agents"].values()))
        return settings


def folders(names: Sequence[str]) -> list[Path]:
    """Return the folders with these names, or all folders with a generator and an audit."""
    if names:
        missing = [name for name in names if not (SERVERS / name / "audit.py").exists()]
        if missing:
            raise ConfigError(f"no audit.py in {', '.join(missing)}", where=str(SERVERS.relative_to(ROOT)))
        return [SERVERS / name for name in names]
    folders = [path for path in sorted(SERVERS.iterdir()) if not path.is_symlink()]  # a link is an earlier name
    return [path for path in folders if all((path / name).exists() for name in ("audit.py", "generate.py"))]


def generate_files(folder: Path) -> Files:
    """Generate the three example files of a folder.

    Raises:
        GymError: the files cannot be generated.
    """
    package = f"resources_servers.{folder.name}"
    rows = list(importlib.import_module(f"{package}.generate").rows(EXAMPLES, seed=0))
    audit = importlib.import_module(f"{package}.audit")
    agent = example_agent_of(folder)
    examples = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return {
        "example.jsonl": examples,
        "example_metrics.json": collate_metrics(folder, agent, examples),
        "example_rollouts.jsonl": record_rollouts(folder, agent, audit, rows),
    }


def example_agent_of(folder: Path) -> ExampleAgent:
    """Find the agent with the example dataset in `configs/<name>.yaml`.

    Raises:
        ConfigError: no agent has one.
    """
    path = folder / "configs" / f"{folder.name}.yaml"
    tree = load_tree(path, [ROOT], strict=False)
    for agent in instances_of(tree, "responses_api_agents"):
        for _, dataset in datasets_of(agent.fields):
            if dataset.get("type") == "example":
                return ExampleAgent(agent.name, tree[agent.name], dataset, tree)
    raise ConfigError("no agent has a dataset of type example", where=str(path))


def collate_metrics(folder: Path, agent: ExampleAgent, examples: bytes) -> bytes:
    """Return the metrics that `gym dataset collate` computes; keep stored token counts if none can be counted here."""
    with tempfile.TemporaryDirectory() as folder_name:
        path = Path(folder_name) / "example.jsonl"
        path.write_bytes(examples)
        source = DatasetSource(agent.name, DatasetConfig.model_validate(agent.dataset), path, "example")
        (dataset,) = collate([source], Path(folder_name) / "out", watch=lambda *_: None).datasets
    return encode_metrics(compare_metrics(folder / "data" / "example_metrics.json", dataset.metrics)[2])


def record_rollouts(folder: Path, agent: ExampleAgent, audit: ModuleType, rows: Sequence[Row]) -> bytes:
    """Run the rows with a scripted model; return the records without fields that differ between runs.

    Raises:
        ConfigError: a rollout failed, or its reward is not what the audit says.
    """
    with tempfile.TemporaryDirectory() as folder_name:
        config, inputs, out = (Path(folder_name) / name for name in ("config.yaml", "rows.jsonl", "rollouts.jsonl"))
        config.write_text(yaml.safe_dump(scripted_config(folder.name, agent, audit, rows), sort_keys=False))
        refs = [{"type": "responses_api_agents", "name": f"{agent.name}_{number}"} for number in range(len(rows))]
        lines = [json.dumps({**row, "agent_ref": ref}) + "\n" for row, ref in zip(rows, refs, strict=True)]
        inputs.write_text("".join(lines), encoding="utf-8")
        result = subprocess.run(
            [sys.executable, "-c", GYM, "eval", "run", "--config", str(config), "--input", str(inputs),
             "--output", str(out), "--disable-aggregation"],
            cwd=folder_name,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=MAX_SECONDS,
            check=False,
        )  # fmt: skip
        records = [json.loads(line) for line in out.read_text("utf-8").splitlines()] if out.exists() else []
        if result.returncode or len(records) != len(rows):
            output = (result.stderr or result.stdout).decode(errors="replace")[-2000:]
            raise ConfigError(f"{len(records)} of {len(rows)} rollouts were scored\n{output}", where=folder.name)
    records.sort(key=lambda record: record["_ng_task_index"])
    _check_rewards(folder.name, audit, rows, records)
    volatile = getattr(audit, "VOLATILE", ())
    return "".join(stable(record, agent.name, volatile) + "\n" for record in records).encode()


def _check_rewards(name: str, audit: ModuleType, rows: Sequence[Row], records: Sequence[Row]) -> None:
    expected = read_expectations(audit)
    for number, (row, record) in enumerate(zip(rows, records, strict=True)):
        is_full = abs(record["reward"] - expected.full_reward_of(row)) < 1e-9
        if is_full == (number == WRONG_ROW) and expected.most_for_a_cheat < expected.full_reward_of(row):
            expected_reward = "less than the full reward" if number == WRONG_ROW else "the full reward"
            raise ConfigError(f"row {number} got {record['reward']:g}, not {expected_reward}", where=name)


def scripted_config(name: str, agent: ExampleAgent, audit: ModuleType, rows: Sequence[Row]) -> Tree:
    """Return the folder's configuration with one scripted model and agent per row, and scripted judges."""
    tree: Tree = {}
    for key, block in agent.tree.items():
        if isinstance(block, Mapping) and "responses_api_models" in block:
            function = f"tools.example_judges:{name}"
            tree[key] = {"responses_api_models": {"scripted_model": {"entrypoint": "app.py", "function": function}}}
        elif not isinstance(block, Mapping) or "responses_api_agents" not in block:  # other agents are not used
            tree[key] = block
    for number, row in enumerate(rows):
        reply = wrong_reply(audit, row) if number == WRONG_ROW else audit.oracle(row)
        script = [{"text": "…"}] * turns_before(row) + script_turns(reply, one_by_one=is_serial(row))
        scripted = {"entrypoint": "app.py", "script": script}
        tree[f"model_{number}"] = {"responses_api_models": {"scripted_model": scripted}}
        block = json.loads(json.dumps(agent.block))
        settings = next(iter(block["responses_api_agents"].values()))
        settings["model_server"] = {"type": "responses_api_models", "name": f"model_{number}"}
        settings.pop("datasets")
        tree[f"{agent.name}_{number}"] = block
    return tree


def wrong_reply(audit: ModuleType, row: Row) -> Reply:
    replies = list(audit.wrong(row)) if hasattr(audit, "wrong") else []
    return replies[0] if replies else "I do not know."


def is_serial(row: Row) -> bool:
    return row["responses_create_params"].get("parallel_tool_calls") is False


def turns_before(row: Row) -> int:
    """Count the model turns that the prompt already contains."""
    prompt = row["responses_create_params"]["input"]
    return 0 if isinstance(prompt, str) else turns_in_items(prompt)


def script_turns(reply: Reply, *, one_by_one: bool = False) -> list[dict[str, Any]]:
    """Split a reply into the turns of a script, at items of other roles and before a further message."""
    if isinstance(reply, str):
        return [{"text": reply}]
    turns: list[dict[str, Any]] = [{}]
    for item in reply:
        kind, role = item.get("type", "message"), item.get("role", "assistant")
        if kind == "function_call":
            calls = turns[-1].setdefault("tool_calls", [])
            calls.append({"name": item["name"], "arguments": item.get("arguments", {})})
            if one_by_one:
                turns.append({})
        elif kind == "reasoning":
            summary = item.get("summary") or [{"text": ""}]
            turns[-1]["reasoning"] = "\n".join(part.get("text", "") for part in summary)
        elif kind == "message" and role == "assistant":
            if "text" in turns[-1] or "tool_calls" in turns[-1]:
                turns.append({})
            turns[-1]["text"] = _text(item.get("content", ""))
        elif turns[-1]:
            turns.append({})
    last = [turn for turn in turns if turn] or [{"text": ""}]
    return last if "text" in last[-1] else [*last, {"text": "Done."}]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def stable(record: Row, agent: str, volatile: Sequence[str]) -> str:
    """Return a record as one line without timings and with random values set to zero."""
    kept = {key: value for key, value in record.items() if key not in TIMING_FIELDS}
    kept["agent_ref"] = {**kept["agent_ref"], "name": agent}
    line = json.dumps(kept, ensure_ascii=False, separators=(",", ":"))
    for pattern in volatile:
        line = re.sub(pattern, _set_to_zero, line)
    return line


def _set_to_zero(match: re.Match[str]) -> str:
    """Return the matched text with its first group, or all of it, replaced by zeros."""
    start, end = (position - match.start() for position in match.span(1 if match.re.groups else 0))
    value = match[0][start:end]
    return match[0][:start] + ("0" * len(value) if value.isalnum() else "0.0") + match[0][end:]


def differences(folder: Path, files: Files) -> Iterator[str]:
    """Yield the files that differ from the generated ones, and their first difference."""
    for name, content in files.items():
        path = folder / "data" / name
        stored = path.read_bytes() if path.exists() else b""
        if stored == content:
            continue
        before, after = (text.decode(errors="replace").splitlines() for text in (stored, content))
        changed = [
            line for line in difflib.unified_diff(before, after, lineterm="", n=0) if line[:2] not in ("--", "++")
        ]
        yield f"{path.relative_to(ROOT)}: {'is missing' if not stored else f'{len(changed) - 1} lines differ'}"
        yield from (f"  {_shorten(line)}" for line in _first_difference(before, after))


def _first_difference(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    for number, (old, new) in enumerate(zip(before, after, strict=False), start=1):
        if old != new:
            start = next((i for i, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), 0)
            yield f"line {number}, character {start}: {old[max(0, start - 30) : start + 60]!r}"
            yield f"               generated: {new[max(0, start - 30) : start + 60]!r}"
            return


def _shorten(line: str) -> str:
    return line if len(line) <= 160 else f"{line[:159]}…"


def try_to_generate(folder: Path) -> Files | GymError:
    """Generate the files of a folder, or return the error."""
    try:
        return generate_files(folder)
    except GymError as problem:
        return problem
    except Exception as error:  # the folder's code may raise anything
        last = traceback.extract_tb(error.__traceback__)[-1]
        return GymError(f"{type(error).__name__}: {error}", where=f"{last.filename}:{last.lineno}")


def report_and_write(folder: Path, files: Files | GymError, *, check: bool) -> bool:
    """Print the state of a folder and, unless `check`, write its files; return whether the folder is in order."""
    if isinstance(files, GymError):
        print(f"{folder.name}: cannot be generated: {files}", file=sys.stderr)
        return False
    problems = list(differences(folder, files))
    state = "up to date" if not problems else "differs" if check else "written"
    print("\n".join([f"{folder.name}: {state}", *problems]), file=sys.stderr)
    if not check:
        for name, content in files.items():
            with whole_file(folder / "data" / name) as stream:
                stream.write(content)
    return not (check and problems)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", metavar="NAME", help="folder of resources_servers (default: all)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file differs")
    args = parser.parse_args(words)
    try:
        chosen = folders(args.name)
    except GymError as problem:
        print(problem, file=sys.stderr)
        return 2
    with ThreadPoolExecutor(max(1, min(len(chosen), os.cpu_count() or 1))) as pool:
        results = zip(chosen, pool.map(try_to_generate, chosen), strict=True)
        good = [report_and_write(folder, files, check=args.check) for folder, files in results]
    return int(not all(good))


if __name__ == "__main__":
    raise SystemExit(main())
