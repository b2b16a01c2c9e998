"""Compare a manifest with its configuration, scripts, rows and READMEs, and check that it is ready to be published."""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nemo_gym.authoring.manifest import (
    FOLDERS,
    MANIFEST,
    EnvironmentManifest,
    ManifestDataset,
    resolve_manifest_config_path,
)
from nemo_gym.catalog.atomic_files import whole_file
from nemo_gym.catalog.components import load_tree
from nemo_gym.catalog.rows import read_line, row_problems
from nemo_gym.config.instances import server_instances
from nemo_gym.errors import ConfigError
from nemo_gym.keys import AGENTS, RESOURCES

MIRRORED = ("resources_server", "agent_server", "model_server", "datasets", "rollout_driver", "grading_mode")
"""Fields whose values must be equal to those in config.yaml."""
MAX_PROBLEMS_PER_FILE = 5
PLACEHOLDER = re.compile(r"\b(to-?do|fix-?me|tbd|say here|whom to ask)\b|\?\?\?", re.IGNORECASE)
"""Placeholder text that must be replaced before publication, such as in the files that `gym env init` writes."""
README = "README.md"


@dataclass(frozen=True)
class ManifestProblem:
    """A problem of a manifest or its files. If `mirrored`, `--sync` fixes it by copying the value from config.yaml."""

    where: str
    problem: str
    mirrored: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


def check_manifest(path: Path, manifest: EnvironmentManifest, roots: Sequence[Path]) -> list[ManifestProblem]:
    """List the problems of a manifest and of its datasets' files, without importing or starting a server.

    Raises:
        ConfigError: the config.yaml next to the manifest cannot be read.
    """
    configured = configured_fields(resolve_manifest_config_path(path, manifest), roots, manifest.dataset_owner)
    written = manifest.written_fields()
    problems = [
        ManifestProblem(
            path.name, f"{key} is {_as_json(written.get(key))}, config.yaml has {_as_json(configured.get(key))}", True
        )
        for key in MIRRORED
        if _comparable(key, written.get(key)) != _comparable(key, configured.get(key))
    ]
    for dataset in configured["datasets"]:
        problems += _check_dataset(dataset, roots)
    return problems


def sync_manifest(path: Path, manifest: EnvironmentManifest, roots: Sequence[Path]) -> EnvironmentManifest:
    """Copy mirrored values from config.yaml into the manifest; move comment lines to its top, drop other comments."""
    configured = configured_fields(resolve_manifest_config_path(path, manifest), roots, manifest.dataset_owner)
    written = {key: value for key, value in manifest.written_fields().items() if key not in MIRRORED}
    configured["datasets"] = _with_own_fields(configured["datasets"], manifest.datasets)
    updated = EnvironmentManifest.model_validate({**written, **configured})
    comment = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    text = "\n".join([*comment, yaml.safe_dump(updated.written_fields(), sort_keys=False, allow_unicode=True)])
    with whole_file(path) as stream:
        stream.write(text.encode())
    return updated


def configured_fields(path: Path, roots: Sequence[Path], dataset_owner: str | None = None) -> dict[str, Any]:
    """Return the values that a configuration file has for the mirrored fields of its manifest.

    Raises:
        ConfigError: the configuration cannot be read, or does not have exactly one instance with datasets and one
            agent that runs them.
    """
    tree = load_tree(path, roots, strict=False)
    instances = server_instances(tree)
    owner = _dataset_owner(instances, path, dataset_owner)
    agent, verifier = owner, owner
    if owner.server_type == AGENTS:
        verifier = instances.get(owner.reference("resources_server") or "")
    else:
        agent = _agent_of(owner, instances, path)
    fields = {
        "resources_server": verifier.implementation if verifier else None,
        "agent_server": agent.implementation,
        "model_server": agent.reference("model_server"),
        "datasets": [
            {key: dataset[key] for key in ManifestDataset.model_fields if dataset.get(key) is not None}
            for dataset in owner.fields["datasets"]
        ],
        "rollout_driver": tree.get("rollout_collection_driver"),
        "grading_mode": verifier.fields.get("grading_mode") if verifier else None,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _dataset_owner(instances: Mapping[str, Any], path: Path, name: str | None) -> Any:
    """Return the instance whose datasets a manifest describes: the one named, or the only one with datasets."""
    owners = {
        key: i for key, i in instances.items() if i.server_type in (AGENTS, RESOURCES) and i.fields.get("datasets")
    }
    if name is not None:
        if name not in owners:
            raise ConfigError(f"the dataset_owner {name!r} has no datasets", where=str(path), fix=", ".join(owners))
        return owners[name]
    if len(owners) != 1:
        problem = f"{len(owners)} servers have datasets; in an environment, exactly one agent or resources server has"
        raise ConfigError(problem, where=str(path), fix="set dataset_owner in the manifest")
    return next(iter(owners.values()))


def _agent_of(verifier: Any, instances: Mapping[str, Any], path: Path) -> Any:
    """Return the agent that runs the datasets of a resources server: the one they name, or the only user of it."""
    pins = {str(dataset["agent"]) for dataset in verifier.fields["datasets"] if dataset.get("agent")}
    users = {
        name: i
        for name, i in instances.items()
        if i.server_type == AGENTS and instances.get(i.reference("resources_server") or "") is verifier
    }
    chosen = [name for name in users if name in pins] if pins else list(users)
    if len(chosen) != 1:
        raise ConfigError(f"{len(chosen)} agents use the resources server with the datasets", where=str(path))
    return users[chosen[0]]


def _comparable(key: str, value: Any) -> Any:
    """Return a value for comparison: the mirrored fields of datasets with their default, other values unchanged."""
    if key != "datasets":
        return value
    mirrored = (
        {name: field for name, field in one.items() if name in ManifestDataset.model_fields} for one in value or ()
    )
    return [{"num_repeats": 1, **dataset} for dataset in mirrored]


def _with_own_fields(datasets: Sequence[Mapping[str, Any]], written: Sequence[ManifestDataset]) -> list[dict[str, Any]]:
    """Return the configured datasets with the fields that only their entries in the manifest have."""
    own = {dataset.name: dataset.model_extra or {} for dataset in written}
    return [{**dataset, **own.get(str(dataset["name"]), {})} for dataset in datasets]


def _as_json(value: Any) -> str:
    return "missing" if value in (None, []) else json.dumps(value)


def _check_dataset(dataset: Mapping[str, Any], roots: Sequence[Path]) -> list[ManifestProblem]:
    """List the problems of a dataset's script, prompt and rows."""
    problems: list[ManifestProblem] = []
    script, prompt = dataset.get("prepare_script"), dataset.get("prompt_config")
    if script:
        problems += _check_script(str(script), roots)
    if prompt and _find_file(str(prompt), roots) is None:
        problems.append(ManifestProblem(str(prompt), "does not exist"))
    rows = _find_file(dataset["jsonl_fpath"], roots)
    if rows is not None:
        problems += _check_rows(rows, dataset["jsonl_fpath"], has_prompt=bool(prompt))
    elif dataset["type"] == "example" or (dataset["type"] == "benchmark" and not script):  # others are made or fetched
        problems.append(ManifestProblem(dataset["jsonl_fpath"], "does not exist"))
    return problems


def _check_script(script: str, roots: Sequence[Path]) -> list[ManifestProblem]:
    """Check that a script exists, can be parsed and defines `prepare()`."""
    path = _find_file(script, roots)
    if path is None:
        return [ManifestProblem(script, "does not exist")]
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        return [ManifestProblem(script, f"line {error.lineno}: {error.msg}")]
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return [] if "prepare" in functions else [ManifestProblem(script, "defines no function prepare()")]


def _check_rows(path: Path, name: str, *, has_prompt: bool) -> list[ManifestProblem]:
    """List the first problems of the rows in a file."""
    problems: list[ManifestProblem] = []
    count = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            count += 1
            row, row_errors = read_line(line.rstrip(b"\n"))
            gets_params = has_prompt and row is not None and "responses_create_params" not in row
            if row is not None and not gets_params:  # a prompt makes the missing parameters from the other fields
                row_errors += row_problems(row)
            problems += [ManifestProblem(f"{name}:{number}", str(problem)) for problem in row_errors]
            if len(problems) >= MAX_PROBLEMS_PER_FILE:
                break
    return problems[:MAX_PROBLEMS_PER_FILE] if count else [ManifestProblem(name, "has no rows")]


def _find_file(relative: str, roots: Sequence[Path]) -> Path | None:
    path = Path(relative)
    candidates = [path] if path.is_absolute() else [root / path for root in roots]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def check_publishable(path: Path, manifest: EnvironmentManifest, roots: Sequence[Path]) -> list[ManifestProblem]:
    """List everything that must change before an environment is published, without running its verifier.

    Raises:
        ConfigError: the config.yaml next to the manifest cannot be read.
    """
    return [
        *check_manifest(path, manifest, roots),
        *_check_placeholders(path, manifest, roots),
        *_check_name_is_unique(path, manifest, roots),
    ]


def _check_placeholders(path: Path, manifest: EnvironmentManifest, roots: Sequence[Path]) -> Iterator[ManifestProblem]:
    """Yield a problem for each placeholder in the manifest and the READMEs, and for an unknown licence."""
    if manifest.licensing.lower() == "unknown":
        problem = "licensing is unknown; name the licence of the data: an SPDX name, internal, …"
        yield ManifestProblem(path.name, problem)
    files = [path, path.parent / README]
    if manifest.resources_server:
        verifier_readme = _find_file(f"{RESOURCES}/{manifest.resources_server}/{README}", roots)
        files += [verifier_readme] if verifier_readme else []
    for file in files:
        if not file.is_file():
            yield ManifestProblem(str(file), "does not exist")
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            if match := PLACEHOLDER.search(line):
                location = f"{file.parent.parent.name}/{file.parent.name}/{file.name}:{number}"
                yield ManifestProblem(location, f"still contains '{match.group()}'")


def _check_name_is_unique(
    path: Path, manifest: EnvironmentManifest, roots: Sequence[Path]
) -> Iterator[ManifestProblem]:
    """Check that this manifest, and no other one, is found under its name in the search roots."""
    for folder in FOLDERS.values():
        for root in roots:
            other = root / folder / manifest.name / MANIFEST
            if other.is_file() and other.resolve() != path.resolve():
                yield ManifestProblem(path.name, f"'{manifest.name}' is also the name of {other}")
    folder = f"{FOLDERS[manifest.kind]}/{manifest.name}"
    if not any((root / folder / MANIFEST).is_file() for root in roots):
        yield ManifestProblem(path.name, f"cannot be found by name: no search root has {folder}/{MANIFEST}")
