"""Write the example data of the server folders again: `python -m tools.examples [NAME ...] [--check]`.

data/example.jsonl are five rows of the folder's generate.py with seed 0, example_metrics.json is what `gym dataset
collate` measures of them, and example_rollouts.jsonl are rollouts that a scripted model plays: the oracle of the
folder's audit.py for four rows, a wrong answer for the last. --check writes nothing and exits 1 when a file has
drifted.
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

from nemo_gym.catalog.files import whole_file
from nemo_gym.config.directives import expand_directives
from nemo_gym.config.load import load_files
from nemo_gym.config.merge import Tree, merge_into
from nemo_gym.config.schema_datasets import DatasetConfig
from nemo_gym.data.collate import collate
from nemo_gym.data.sidecar import compared, metrics_text
from nemo_gym.data.sources import Source
from nemo_gym.environment.audit import expectations
from nemo_gym.environment.audit_replies import Reply
from nemo_gym.errors import ConfigError, GymError
from responses_api_models.scripted_model.script import turns_in_items

ROOT = Path(__file__).resolve().parents[1]
SERVERS = ROOT / "resources_servers"
EXAMPLES = 5
WRONG = EXAMPLES - 1
"""The row that is answered wrongly."""
MEASURED = ("_ng_phases", "_ng_seconds")
LONGEST = 300.0
GYM = "import sys; from nemo_gym.cli.main import main; sys.exit(main())"

Row = dict[str, Any]
Files = dict[str, bytes]
"""File name -> content."""


@dataclass(frozen=True)
class Player:
    """The agent of a folder's configuration that has the example rows, and the tree it stands in."""

    name: str
    block: dict[str, Any]
    dataset: dict[str, Any]
    tree: Tree

    @property
    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = next(iter(self.block["responses_api_agents"].values()))
        return found


def folders(names: Sequence[str]) -> list[Path]:
    """The folders of these names, or all that can be made: with a generator and an audit."""
    if names:
        missing = [name for name in names if not (SERVERS / name / "audit.py").exists()]
        if missing:
            raise ConfigError(f"no audit.py in {', '.join(missing)}", where=str(SERVERS.relative_to(ROOT)))
        return [SERVERS / name for name in names]
    return [path for path in sorted(SERVERS.iterdir()) if all((path / f).exists() for f in ("audit.py", "generate.py"))]


def made(folder: Path) -> Files:
    """The three files of a folder as the code of today writes them.

    Raises:
        GymError: why they cannot be made.
    """
    package = f"resources_servers.{folder.name}"
    rows = list(importlib.import_module(f"{package}.generate").rows(EXAMPLES, seed=0))
    audit = importlib.import_module(f"{package}.audit")
    player = player_of(folder)
    examples = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return {
        "example.jsonl": examples,
        "example_metrics.json": measured(folder, player, examples),
        "example_rollouts.jsonl": played(folder, player, audit, rows),
    }


def player_of(folder: Path) -> Player:
    """The agent with the example rows in `configs/<name>.yaml`.

    Raises:
        ConfigError: there is none.
    """
    path = folder / "configs" / f"{folder.name}.yaml"
    merged: Tree = {}
    for source in load_files([str(path)], [ROOT]).sources:
        merge_into(merged, source.tree, root=merged)
    tree = expand_directives(merged).tree
    for name, block in tree.items():
        agents = block.get("responses_api_agents") if isinstance(block, Mapping) else None
        for settings in (agents or {}).values():
            for dataset in settings.get("datasets") or ():
                if dataset.get("type") == "example":
                    return Player(str(name), block, dataset, tree)
    raise ConfigError("no agent has a dataset of type example", where=str(path))


def measured(folder: Path, player: Player, examples: bytes) -> bytes:
    """What `gym dataset collate` measures of the rows. Tokens are kept where they cannot be counted here."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "example.jsonl"
        path.write_bytes(examples)
        source = Source(player.name, DatasetConfig.model_validate(player.dataset), path, "example")
        (dataset,) = collate([source], Path(place) / "out", watch=lambda *_: None).datasets
    return metrics_text(compared(folder / "data" / "example_metrics.json", dataset.metrics)[2])


def played(folder: Path, player: Player, audit: ModuleType, rows: Sequence[Row]) -> bytes:
    """Rollouts of the rows by a scripted model, with nothing in them that differs from run to run.

    Raises:
        ConfigError: a rollout failed, or its reward is not what the audit says.
    """
    with tempfile.TemporaryDirectory() as place:
        config, given, out = (Path(place) / name for name in ("config.yaml", "rows.jsonl", "rollouts.jsonl"))
        config.write_text(yaml.safe_dump(stage(folder.name, player, audit, rows), sort_keys=False))
        refs = [{"type": "responses_api_agents", "name": f"{player.name}_{number}"} for number in range(len(rows))]
        lines = [json.dumps({**row, "agent_ref": ref}) + "\n" for row, ref in zip(rows, refs, strict=True)]
        given.write_text("".join(lines), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-c", GYM, "eval", "run", "--config", str(config), "--input", str(given),
             "--output", str(out), "--disable-aggregation"],
            cwd=place,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LONGEST,
            check=False,
        )  # fmt: skip
        records = [json.loads(line) for line in out.read_text("utf-8").splitlines()] if out.exists() else []
        if done.returncode or len(records) != len(rows):
            told = (done.stderr or done.stdout).decode(errors="replace")[-2000:]
            raise ConfigError(f"{len(records)} of {len(rows)} rollouts were scored\n{told}", where=folder.name)
    records.sort(key=lambda record: record["_ng_task_index"])
    _check_rewards(folder.name, audit, rows, records)
    volatile = getattr(audit, "VOLATILE", ())
    return "".join(stable(record, player.name, volatile) + "\n" for record in records).encode()


def _check_rewards(name: str, audit: ModuleType, rows: Sequence[Row], records: Sequence[Row]) -> None:
    expected = expectations(audit)
    for number, (row, record) in enumerate(zip(rows, records, strict=True)):
        is_full = abs(record["reward"] - expected.full(row)) < 1e-9
        if is_full == (number == WRONG) and expected.most_for_a_cheat < expected.full(row):
            wanted = "less than the full reward" if number == WRONG else "the full reward"
            raise ConfigError(f"row {number} got {record['reward']:g}, not {wanted}", where=name)


def stage(name: str, player: Player, audit: ModuleType, rows: Sequence[Row]) -> Tree:
    """The folder's configuration with a model and an agent for each row, and scripted models for every other model."""
    tree: Tree = {}
    for key, block in player.tree.items():
        if isinstance(block, Mapping) and "responses_api_models" in block:
            function = f"tools.example_judges:{name}"
            tree[key] = {"responses_api_models": {"scripted_model": {"entrypoint": "app.py", "function": function}}}
        elif not isinstance(block, Mapping) or "responses_api_agents" not in block:  # other agents play no part
            tree[key] = block
    for number, row in enumerate(rows):
        reply = first_wrong(audit, row) if number == WRONG else audit.oracle(row)
        script = [{"text": "…"}] * turns_before(row) + turns(reply, one_by_one=is_serial(row))
        scripted = {"entrypoint": "app.py", "script": script}
        tree[f"model_{number}"] = {"responses_api_models": {"scripted_model": scripted}}
        agent = json.loads(json.dumps(player.block))
        settings = next(iter(agent["responses_api_agents"].values()))
        settings["model_server"] = {"type": "responses_api_models", "name": f"model_{number}"}
        settings.pop("datasets")
        tree[f"{player.name}_{number}"] = agent
    return tree


def first_wrong(audit: ModuleType, row: Row) -> Reply:
    found = list(audit.wrong(row)) if hasattr(audit, "wrong") else []
    return found[0] if found else "I do not know."


def is_serial(row: Row) -> bool:
    return row["responses_create_params"].get("parallel_tool_calls") is False


def turns_before(row: Row) -> int:
    """How often a model has spoken in the prompt already."""
    asked = row["responses_create_params"]["input"]
    return 0 if isinstance(asked, str) else turns_in_items(asked)


def turns(reply: Reply, *, one_by_one: bool = False) -> list[dict[str, Any]]:
    """A reply as the turns of a script: one ends where somebody else speaks, and before another message."""
    if isinstance(reply, str):
        return [{"text": reply}]
    found: list[dict[str, Any]] = [{}]
    for item in reply:
        kind, role = item.get("type", "message"), item.get("role", "assistant")
        if kind == "function_call":
            calls = found[-1].setdefault("tool_calls", [])
            calls.append({"name": item["name"], "arguments": item.get("arguments", {})})
            if one_by_one:
                found.append({})
        elif kind == "reasoning":
            summary = item.get("summary") or [{"text": ""}]
            found[-1]["reasoning"] = "\n".join(part.get("text", "") for part in summary)
        elif kind == "message" and role == "assistant":
            if "text" in found[-1] or "tool_calls" in found[-1]:
                found.append({})
            found[-1]["text"] = _text(item.get("content", ""))
        elif found[-1]:
            found.append({})
    last = [turn for turn in found if turn] or [{"text": ""}]
    return last if "text" in last[-1] else [*last, {"text": "Done."}]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def stable(record: Row, agent: str, volatile: Sequence[str]) -> str:
    """A rollout on one line, without what was measured and what is made up for each run."""
    kept = {key: value for key, value in record.items() if key not in MEASURED}
    kept["agent_ref"] = {**kept["agent_ref"], "name": agent}
    line = json.dumps(kept, ensure_ascii=False, separators=(",", ":"))
    for pattern in volatile:
        line = re.sub(pattern, _zeroed, line)
    return line


def _zeroed(found: re.Match[str]) -> str:
    """What an expression matches with its first group, or all of it, set to zero."""
    start, end = (place - found.start() for place in found.span(1 if found.re.groups else 0))
    made_up = found[0][start:end]
    return found[0][:start] + ("0" * len(made_up) if made_up.isalnum() else "0.0") + found[0][end:]


def drift(folder: Path, files: Files) -> Iterator[str]:
    """Which files say something else than what the code of today writes, and where they begin to."""
    for name, content in files.items():
        path = folder / "data" / name
        there = path.read_bytes() if path.exists() else b""
        if there == content:
            continue
        before, after = (text.decode(errors="replace").splitlines() for text in (there, content))
        changed = [
            line for line in difflib.unified_diff(before, after, lineterm="", n=0) if line[:2] not in ("--", "++")
        ]
        yield f"{path.relative_to(ROOT)}: {'is missing' if not there else f'{len(changed) - 1} lines differ'}"
        yield from (f"  {_cut(line)}" for line in _first_difference(before, after))


def _first_difference(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    for number, (old, new) in enumerate(zip(before, after, strict=False), start=1):
        if old != new:
            start = next((i for i, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), 0)
            yield f"line {number}, character {start}: {old[max(0, start - 30) : start + 60]!r}"
            yield f"                   today: {new[max(0, start - 30) : start + 60]!r}"
            return


def _cut(line: str) -> str:
    return line if len(line) <= 160 else f"{line[:159]}…"


def attempted(folder: Path) -> Files | GymError:
    """The files of a folder, or why there are none."""
    try:
        return made(folder)
    except GymError as problem:
        return problem
    except Exception as error:  # a folder's own code: whatever it raises is told
        last = traceback.extract_tb(error.__traceback__)[-1]
        return GymError(f"{type(error).__name__}: {error}", where=f"{last.filename}:{last.lineno}")


def settle(folder: Path, files: Files | GymError, *, check: bool) -> bool:
    """Say how a folder stands, and write what is new unless this is a check; whether all is well."""
    if isinstance(files, GymError):
        print(f"{folder.name}: cannot be made: {files}", file=sys.stderr)
        return False
    told = list(drift(folder, files))
    state = "as it is" if not told else "drifted" if check else "written"
    print("\n".join([f"{folder.name}: {state}", *told]), file=sys.stderr)
    if not check:
        for name, content in files.items():
            with whole_file(folder / "data" / name) as stream:
                stream.write(content)
    return not (check and told)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", metavar="NAME", help="a folder of resources_servers (default: all)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file has drifted")
    args = parser.parse_args(words)
    try:
        chosen = folders(args.name)
    except GymError as problem:
        print(problem, file=sys.stderr)
        return 2
    with ThreadPoolExecutor(max(1, min(len(chosen), os.cpu_count() or 1))) as pool:
        found = zip(chosen, pool.map(attempted, chosen), strict=True)
        good = [settle(folder, files, check=args.check) for folder, files in found]
    return int(not all(good))


if __name__ == "__main__":
    raise SystemExit(main())
