"""Whether what a manifest says is so: its configuration, its scripts, its rows."""

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from nemo_gym.base_resources_server import BaseRunRequest
from nemo_gym.catalog.files import whole_file
from nemo_gym.config.directives import expand_directives
from nemo_gym.config.load import load_files
from nemo_gym.config.merge import Tree, merge_into
from nemo_gym.environment.manifest import EnvironmentManifest, plain
from nemo_gym.errors import ConfigError

AGENTS, VERIFIERS = "responses_api_agents", "resources_servers"
DATASET_KEYS = ("name", "type", "jsonl_fpath", "prepare_script", "prompt_config", "num_repeats")
MIRRORED = ("resources_server", "agent_server", "model_server", "datasets", "rollout_driver", "grading_mode")
MOST_PROBLEMS_PER_FILE = 5


@dataclass(frozen=True)
class Finding:
    """Something that is not as the manifest says. `mirrored`: writing the configuration's value there cures it."""

    where: str
    problem: str
    mirrored: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


def check_manifest(path: Path, manifest: EnvironmentManifest, roots: Sequence[Path]) -> list[Finding]:
    """Everything that is wrong with a manifest and the files around it. Nothing is started or imported.

    Raises:
        ConfigError: the configuration beside it cannot be read.
    """
    said = configured(path.parent / "config.yaml", roots)
    written = plain(manifest)
    found = [
        Finding(path.name, f"{key} is {_shown(written.get(key))}, config.yaml says {_shown(said.get(key))}", True)
        for key in MIRRORED
        if _comparable(key, written.get(key)) != _comparable(key, said.get(key))
    ]
    for dataset in said["datasets"]:
        found += _check_dataset(dataset, roots)
    return found


def synchronised(path: Path, manifest: EnvironmentManifest, roots: Sequence[Path]) -> EnvironmentManifest:
    """Write what config.yaml says into the manifest, the file replaced as a whole; its first comment stays."""
    said = configured(path.parent / "config.yaml", roots)
    written = {key: value for key, value in plain(manifest).items() if key not in MIRRORED}
    updated = EnvironmentManifest.model_validate({**written, **said})
    comment = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    text = "\n".join([*comment, yaml.safe_dump(plain(updated), sort_keys=False, allow_unicode=True)])
    with whole_file(path) as stream:
        stream.write(text.encode())
    return updated


def configured(path: Path, roots: Sequence[Path]) -> dict[str, Any]:
    """What a configuration says of the fields that a manifest repeats.

    Raises:
        ConfigError: it cannot be read, or not exactly one agent in it has datasets.
    """
    tree = _tree(path, roots)
    agents = [
        (implementation, settings)
        for _, implementation, settings in _blocks(tree, AGENTS)
        if isinstance(settings, Mapping) and settings.get("datasets")
    ]
    if len(agents) != 1:
        raise ConfigError(f"{len(agents)} agents have datasets; an environment has one that does", where=str(path))
    ((agent, settings),) = agents
    verifier = _name(settings.get("resources_server"))
    servers = {name: (implementation, block) for name, implementation, block in _blocks(tree, VERIFIERS)}
    implementation, block = servers.get(verifier or "", (None, {}))
    said = {
        "resources_server": implementation,
        "agent_server": agent,
        "model_server": _name(settings.get("model_server")),
        "datasets": [
            {key: dataset[key] for key in DATASET_KEYS if dataset.get(key) is not None}
            for dataset in settings["datasets"]
        ],
        "rollout_driver": tree.get("rollout_collection_driver"),
        "grading_mode": block.get("grading_mode") if isinstance(block, Mapping) else None,
    }
    return {key: value for key, value in said.items() if value is not None}


def _tree(path: Path, roots: Sequence[Path]) -> Tree:
    tree: Tree = {}
    for source in load_files([str(path.absolute())], roots).sources:
        merge_into(tree, source.tree, root=tree)
    return expand_directives(tree).tree


def _blocks(tree: Mapping[Any, Any], kind: str) -> list[tuple[str, str, Any]]:
    """(instance, implementation, settings) of every server of a kind."""
    found = []
    for name, block in tree.items():
        implementations = block.get(kind) if isinstance(block, Mapping) else None
        for implementation, settings in implementations.items() if isinstance(implementations, Mapping) else ():
            found.append((str(name), str(implementation), settings))
    return found


def _name(reference: Any) -> str | None:
    return str(reference["name"]) if isinstance(reference, Mapping) and reference.get("name") else None


def _comparable(key: str, value: Any) -> Any:
    if key == "datasets":
        return [{"num_repeats": 1, **dataset} for dataset in value or ()]
    return value


def _shown(value: Any) -> str:
    return "not said" if value in (None, []) else json.dumps(value)


def _check_dataset(dataset: Mapping[str, Any], roots: Sequence[Path]) -> list[Finding]:
    found: list[Finding] = []
    script, prompt = dataset.get("prepare_script"), dataset.get("prompt_config")
    if script:
        found += _check_script(str(script), roots)
    if prompt and _found(str(prompt), roots) is None:
        found.append(Finding(str(prompt), "does not exist"))
    rows = _found(dataset["jsonl_fpath"], roots)
    if rows is not None:
        found += _check_rows(rows, dataset["jsonl_fpath"], has_prompt=bool(prompt))
    elif dataset["type"] == "example" or (dataset["type"] == "benchmark" and not script):
        found.append(Finding(dataset["jsonl_fpath"], "does not exist"))
    return found


def _check_script(script: str, roots: Sequence[Path]) -> list[Finding]:
    path = _found(script, roots)
    if path is None:
        return [Finding(script, "does not exist")]
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        return [Finding(script, f"line {error.lineno}: {error.msg}")]
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return [] if "prepare" in defined else [Finding(script, "defines no function prepare()")]


def _check_rows(path: Path, shown: str, *, has_prompt: bool) -> list[Finding]:
    found: list[Finding] = []
    count = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            count += 1
            problem = _row_problem(line, has_prompt=has_prompt)
            if problem and len(found) < MOST_PROBLEMS_PER_FILE:
                found.append(Finding(f"{shown}:{number}", problem))
    return found if count else [Finding(shown, "has no rows")]


def _row_problem(line: bytes, *, has_prompt: bool) -> str | None:
    try:
        row = json.loads(line)
    except ValueError:
        return "is not JSON"
    if not isinstance(row, dict):
        return "is not an object"
    if has_prompt and "responses_create_params" not in row:
        return None  # the prompt makes it from the other fields
    try:
        BaseRunRequest.model_validate(row)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return None


def _found(relative: str, roots: Sequence[Path]) -> Path | None:
    path = Path(relative)
    candidates = [path] if path.is_absolute() else [root / path for root in roots]
    return next((candidate for candidate in candidates if candidate.is_file()), None)
