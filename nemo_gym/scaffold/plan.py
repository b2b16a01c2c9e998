"""Which files a new resources server, environment or benchmark consists of."""

import ast
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import yaml

from nemo_gym.errors import ConfigError
from nemo_gym.scaffold import agent_templates, templates, workload_templates
from nemo_gym.scaffold.write import ScaffoldResult, checked_name, write_all

AGENT_PROFILES = ("custom-gym-agent-loop", "external-agent-loop")
DRIVEN = "external-rollout-driver"
FOLDERS = {"environment": "environments", "benchmark": "benchmarks"}

Files = dict[Path, str]


@dataclass(frozen=True)
class Reused:
    """A resources server that is there already, and what has to be said about its rewards."""

    verifier: str
    reward_range: tuple[float, float]
    higher_is_better: bool


def scaffold_resources_server(directory: Path, checkout_root: Path | None = None) -> ScaffoldResult:
    """Write a resources server into `directory`, whose last part is its name.

    Inside `checkout_root` its requirements name that checkout, elsewhere the published package.

    Raises:
        ScaffoldConflictError: there is something else already; it is left as it is.
        ConfigError: the name cannot be one.
    """
    root = directory.parent.parent
    return write_all(root, directory, _server_files(directory, checkout_root))


def scaffold_environment(
    root: Path,
    name: str,
    checkout_root: Path | None = None,
    *,
    kind: str = "environment",
    profile: str = "custom-gym-verifier",
    reused: Reused | None = None,
    roots: Sequence[Path] = (),
) -> ScaffoldResult:
    """Write `environments/<name>` or `benchmarks/<name>` below `root`, with the servers its profile needs.

    With `reused`, the resources server of that name in `roots` is its verifier and none is written.

    Raises:
        ScaffoldConflictError: something else is where a file would be; nothing was written.
        ConfigError: the name cannot be one, or the reused server is not there or exports no fixture.
    """
    checked_name(name)
    folder = root / FOLDERS[kind] / name
    agent = f"{name}_agent" if profile in AGENT_PROFILES else "simple_agent"
    words = {
        **_words(name),
        "kind": kind,
        "folder": FOLDERS[kind],
        "profile": profile,
        "verifier": reused.verifier if reused else name,
        "agent": agent,
        "instance": f"{name}_{agent}" if agent == "simple_agent" else agent,
        **_reward_words(reused),
        **_server_block(reused, roots),
        **_dataset_words(kind, name),
        **_profile_words(kind, name, profile),
    }
    files = _filled(folder, _workload(kind, profile), words)
    files[folder / "data/example.jsonl"] = _rows()
    if kind == "benchmark":
        files[folder / "data/source.jsonl"] = _source()
    if reused is None:
        files |= _server_files(root / "resources_servers" / name, checkout_root)
    if profile in AGENT_PROFILES:
        files |= _agent_files(root / "responses_api_agents" / agent, profile, checkout_root)
    return write_all(root, folder, files)


def _server_files(directory: Path, checkout_root: Path | None) -> Files:
    name = checked_name(directory.name)
    given = {
        "__init__.py": "",
        "app.py": templates.APP,
        f"configs/{name}.yaml": templates.CONFIG,
        "data/.gitignore": templates.DATA_IGNORED,
        "requirements.txt": f"{_own_requirement(directory, checkout_root)}\n",
        "tests/__init__.py": "",
        "tests/test_app.py": templates.TESTS,
        "README.md": templates.README,
    }
    files = _filled(directory, given, _words(name))
    return {
        **files,
        directory / "tests/verifier_cases.jsonl": templates.CASES,
        directory / "data/example.jsonl": _rows(),
    }


def _agent_files(directory: Path, profile: str, checkout_root: Path | None) -> Files:
    outside = profile == "external-agent-loop"
    words = {
        **_words(directory.name),
        "purpose": "a program outside plays the episode." if outside else "an agent whose loop is its own.",
        "more_imports": ", request" if outside else "",
        "outside": agent_templates.OUTSIDE if outside else "",
        "loop": agent_templates.OUTSIDE_LOOP if outside else agent_templates.OWN_LOOP,
        "patch": agent_templates.OUTSIDE_PATCH if outside else "",
    }
    given = {
        "__init__.py": "",
        "app.py": agent_templates.APP,
        "requirements.txt": f"{_own_requirement(directory, checkout_root)}\n",
        "tests/__init__.py": "",
        "tests/test_app.py": agent_templates.TESTS,
        "README.md": agent_templates.README,
    }
    return _filled(directory, given, words)


def _workload(kind: str, profile: str) -> dict[str, str]:
    files = {
        "__init__.py": "",
        "manifest.yaml": workload_templates.MANIFEST,
        "config.yaml": workload_templates.CONFIG,
        "README.md": workload_templates.README,
    }
    if kind == "benchmark":
        files |= {"prepare.py": workload_templates.PREPARE, "prompt.yaml": workload_templates.PROMPT}
    if profile == DRIVEN:
        files["rollout_driver.py"] = workload_templates.DRIVER
    return files


def _words(name: str) -> dict[str, str]:
    parts = [part for part in name.split("_") if part]
    return {
        "name": name,
        "Name": "".join(part.capitalize() for part in parts),
        "title": " ".join(parts).capitalize(),
    }


def _reward_words(reused: Reused | None) -> dict[str, str]:
    low, high = reused.reward_range if reused else (0.0, 1.0)
    return {"low": f"{low}", "high": f"{high}", "higher": str(reused.higher_is_better if reused else True).lower()}


def _server_block(reused: Reused | None, roots: Sequence[Path]) -> dict[str, str]:
    """The settings of the verifier's block, and the domain they say."""
    settings: dict[str, Any] = {"entrypoint": "app.py", "domain": "other", "verified": False}
    if reused is not None:
        settings = _settings_of(reused.verifier, roots)
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    return {
        "settings": "\n".join(f"      {line}" for line in text.splitlines()),
        "domain": str(settings.get("domain", "other")),
    }


def _settings_of(verifier: str, roots: Sequence[Path]) -> dict[str, Any]:
    folder = next((root / "resources_servers" / verifier for root in roots if _exists(root, verifier)), None)
    where = f"--reuse-verifier {verifier}"
    if folder is None:
        raise ConfigError(f"there is no resources_servers/{verifier} with an app.py", where=where)
    if "VERIFIER_FIXTURE" not in _assigned(folder / "app.py"):
        raise ConfigError(
            f"{folder / 'app.py'} exports no VERIFIER_FIXTURE", where=where, fix="see `gym env init` for one to copy"
        )
    config = folder / "configs" / f"{verifier}.yaml"
    tree = yaml.safe_load(config.read_text(encoding="utf-8")) if config.is_file() else {}
    for block in tree.values() if isinstance(tree, dict) else ():
        found = block.get("resources_servers", {}).get(verifier) if isinstance(block, Mapping) else None
        if isinstance(found, dict):
            return found
    return {"entrypoint": "app.py", "domain": "other"}


def _exists(root: Path, verifier: str) -> bool:
    return (root / "resources_servers" / verifier / "app.py").is_file()


def _assigned(source: Path) -> set[str]:
    """The names a module assigns at its top level, read without running it."""
    found: set[str] = set()
    for statement in ast.parse(source.read_bytes()).body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def _dataset_words(kind: str, name: str) -> dict[str, str]:
    place = f"{FOLDERS[kind]}/{name}"
    datasets = [{"name": "example", "type": "example", "jsonl_fpath": f"{place}/data/example.jsonl"}]
    if kind == "benchmark":
        benchmark = {
            "name": name,
            "type": "benchmark",
            "jsonl_fpath": f"{place}/data/{name}.jsonl",
            "prepare_script": f"{place}/prepare.py",
            "prompt_config": f"{place}/prompt.yaml",
        }
        datasets = [benchmark, *datasets]
    text = yaml.safe_dump(datasets, sort_keys=False)
    return {
        "datasets": "\n".join(f"        {line}" for line in text.splitlines()),
        "manifest_datasets": "\n".join(f"  {line}" for line in text.splitlines()),
    }


def _profile_words(kind: str, name: str, profile: str) -> dict[str, str]:
    """What only some kinds and profiles have."""
    place, more, files = f"{FOLDERS[kind]}/{name}", "", ""
    commands = f"gym eval run --{kind} {name} --model-type openai_model"
    driver = f"{FOLDERS[kind]}.{name}.rollout_driver:collect"
    if profile == DRIVEN:
        more += f"rollout_driver: {driver}\n"
        files += "| `rollout_driver.py` | collects the rollouts in place of our collector |\n"
    if kind == "benchmark":
        more += f"canonical_split: benchmark\nstandard_prompt_config: {place}/prompt.yaml\n"
        files += "| `prepare.py`, `data/source.jsonl` | what the rows are made of, and how |\n"
        files += "| `prompt.yaml` | what the model is shown |\n"
        commands = f"gym eval prepare --benchmark {name}\n{commands}"
    line = f"rollout_collection_driver: {driver}\n" if profile == DRIVEN else ""
    return {"more": more, "files": files, "commands": commands, "driver_line": line}


def _own_requirement(directory: Path, checkout_root: Path | None) -> str:
    inside = checkout_root is not None and directory.absolute().is_relative_to(checkout_root)
    place = os.path.relpath(checkout_root, directory.absolute()) if inside and checkout_root else ""
    return f"-e nemo-gym[dev] @ {place}/" if inside else "nemo-gym[dev]"


def _filled(folder: Path, files: Mapping[str, str], words: Mapping[str, str]) -> Files:
    return {folder / relative: Template(text).substitute(words) for relative, text in files.items()}


def _rows() -> str:
    """Five rows that an exact match can grade."""
    rows = [
        {
            "responses_create_params": {"input": [{"role": "user", "content": templates.QUESTION.format(word=word)}]},
            "expected_answer": word[::-1],
        }
        for word in templates.WORDS
    ]
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def _source() -> str:
    """What a benchmark's rows are made of."""
    question = workload_templates.QUESTION
    rows = [
        {"question": question.format(word=word), "expected_answer": word[::-1]}
        for word in workload_templates.SOURCE_WORDS
    ]
    return "".join(f"{json.dumps(row)}\n" for row in rows)
