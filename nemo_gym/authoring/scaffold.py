"""Write a new resources server, environment or benchmark: a complete working example with tests."""

import json
import keyword
import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from string import Template
from typing import Any

import yaml

from nemo_gym.authoring.manifest import DRIVER_PROFILE, FOLDERS, Kind
from nemo_gym.catalog.atomic_files import StagedFiles
from nemo_gym.catalog.rows import parse_row
from nemo_gym.config.instances import instances_of
from nemo_gym.errors import ConfigError

AGENT_PROFILES = ("custom-gym-agent-loop", "external-agent-loop")
NAME = re.compile(r"[a-z][a-z0-9_]*")
FIXTURE = re.compile(r"^VERIFIER_FIXTURE\b", re.MULTILINE)
TEMPLATES = Path(__file__).parent / "templates"
"""Files of new folders with `$name` (of the folder), `$Name` (class prefix), `$title` and other placeholders."""
SUFFIX = ".template"
REUSED_ROWS = 5
"""Example rows of a reused verifier that a new environment gets."""

Files = dict[Path, str]


class ScaffoldConflictError(ConfigError, FileExistsError):
    """A file to write exists with other content, or a folder on its path is a link."""


@dataclass(frozen=True)
class ScaffoldResult:
    """The folder that was asked for, the files that were created, and those that existed with the same content."""

    asset_dir: Path
    created: tuple[Path, ...]
    existing: tuple[Path, ...] = ()


@dataclass(frozen=True)
class ReusedVerifier:
    """An existing resources server that verifies the new environment, and its range of rewards."""

    verifier: str
    reward_range: tuple[float, float]
    higher_is_better: bool


def scaffold_resources_server(directory: Path, checkout_root: Path | None = None) -> ScaffoldResult:
    """Write a resources server into `directory`; the name of the directory is the name of the server.

    In a directory below `checkout_root`, the requirements refer to that checkout, otherwise to the published package.

    Raises:
        ScaffoldConflictError: a file exists with other content; nothing was written.
        ConfigError: the name is not a valid module name.
    """
    return write_files(directory.parent.parent, directory, _server_files(directory, checkout_root))


def scaffold_environment(
    root: Path,
    name: str,
    checkout_root: Path | None = None,
    *,
    kind: Kind = "environment",
    profile: str = "custom-gym-verifier",
    reused: ReusedVerifier | None = None,
    roots: Sequence[Path] = (),
) -> ScaffoldResult:
    """Write `environments/<name>` or `benchmarks/<name>` below `root`, with the servers its profile needs.

    With `reused`, the environment uses that resources server, found in `roots`, and no new one is written.

    Raises:
        ScaffoldConflictError: a file exists with other content; nothing was written.
        ConfigError: the name is not a valid module name, or the reused server is missing or exports no fixture.
    """
    check_name(name)
    folder = root / FOLDERS[kind] / name
    agent = f"{name}_agent" if profile in AGENT_PROFILES else "simple_agent"
    low, high = reused.reward_range if reused else (0.0, 1.0)
    values = {
        **_name_values(name),
        "kind": kind,
        "folder": FOLDERS[kind],
        "profile": profile,
        "verifier": reused.verifier if reused else name,
        "agent": agent,
        "instance": f"{name}_{agent}" if agent == "simple_agent" else agent,
        "low": f"{low}",
        "high": f"{high}",
        "higher": str(reused.higher_is_better if reused else True).lower(),
        **_server_values(reused, roots),
        **_dataset_values(kind, name),
        **_profile_values(kind, name, profile),
    }
    files = {**_render("workload", folder, values), **_render("examples", folder, values)}
    if kind == "benchmark":
        files |= _render("benchmark", folder, values)
    if profile == DRIVER_PROFILE:
        files |= _render("driver", folder, values)
    if reused is None:
        files |= _server_files(root / "resources_servers" / name, checkout_root)
    else:
        files |= _example_rows(reused.verifier, roots, folder / "data" / "example.jsonl")
    if profile in AGENT_PROFILES:
        files |= _agent_files(root / "responses_api_agents" / agent, profile, checkout_root)
    return write_files(root, folder, files)


def check_name(name: str) -> str:
    """Return `name` if it is valid for a folder and a Python module.

    Raises:
        ConfigError: the name is not valid; the message suggests a valid one.
    """
    if NAME.fullmatch(name) and not keyword.iskeyword(name):
        return name
    suggestion = re.sub(r"\W+", "_", name.lower(), flags=re.ASCII).strip("_")
    if not NAME.fullmatch(suggestion) or keyword.iskeyword(suggestion):
        suggestion = f"my_{suggestion}".rstrip("_")
    raise ConfigError(f"'{name}' cannot be the name of a Python module", where="name", fix=suggestion)


def write_files(root: Path, asset_dir: Path, files: Mapping[Path, str]) -> ScaffoldResult:
    """Write files below `root`, all of them or none. Files with the same content are kept.

    Raises:
        ScaffoldConflictError: a file differs, or a folder on its path is a link; nothing was written.
        ConfigError: a file could not be written; the others were removed again.
    """
    existing = {path: text for path, text in files.items() if path.exists() or path.is_symlink()}
    conflicts = [path for path, text in existing.items() if not _has_content(path, text)]
    conflicts += [folder for path in files for folder in _linked_folders(root, path)]
    if conflicts:
        names = ", ".join(str(path.relative_to(root)) for path in dict.fromkeys(conflicts))
        raise ScaffoldConflictError(f"exists with other content: {names}", where=str(asset_dir), fix="another name")
    created = [path for path in files if path not in existing]
    try:
        with StagedFiles() as staged:
            for path in created:
                staged.write(path, files[path].encode())
            staged.commit()
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", where=str(asset_dir)) from error
    return ScaffoldResult(asset_dir, tuple(created), tuple(existing))


def _has_content(path: Path, text: str) -> bool:
    return path.is_file() and not path.is_symlink() and path.read_bytes() == text.encode()


def _linked_folders(root: Path, path: Path) -> list[Path]:
    """Return the folders between `root` and `path` that are links: writing through them would leave `root`."""
    return [folder for folder in path.parents if folder.is_relative_to(root) and folder != root and folder.is_symlink()]


def _server_files(directory: Path, checkout_root: Path | None) -> Files:
    """Return the files of a new resources server."""
    values = _name_values(check_name(directory.name))
    return {
        **_package_files(directory, checkout_root),
        **_render("server", directory, values),
        **_render("examples", directory, values),
    }


def _agent_files(directory: Path, profile: str, checkout_root: Path | None) -> Files:
    """Return the files of a new agent server."""
    is_external = profile == "external-agent-loop"
    values = {
        **_name_values(directory.name),
        "purpose": "an external program plays the episode." if is_external else "an agent with its own loop.",
        "more_imports": ", request" if is_external else "",
        "external": _read_template("agent_parts/external_program") if is_external else "",
        "loop": _read_template("agent_parts/external_loop" if is_external else "agent_parts/own_loop"),
        "patch": _read_template("agent_parts/external_patch") if is_external else "",
    }
    return {**_package_files(directory, checkout_root), **_render("agent", directory, values)}


def _package_files(directory: Path, checkout_root: Path | None) -> Files:
    """Return the files that every server folder has: `__init__.py` and requirements."""
    requirement = "nemo-gym[dev]"
    if checkout_root is not None and directory.absolute().is_relative_to(checkout_root):
        requirement = f"-e nemo-gym[dev] @ {os.path.relpath(checkout_root, directory.absolute())}/"
    return _render("package", directory, {"requirement": requirement})


def _render(templates: str, folder: Path, values: Mapping[str, str]) -> Files:
    """Fill the placeholders in the names and texts of a folder of templates."""
    files = {}
    for path in sorted((TEMPLATES / templates).rglob(f"*{SUFFIX}")):
        name = Template(str(path.relative_to(TEMPLATES / templates)).removesuffix(SUFFIX)).substitute(values)
        files[folder / name] = Template(path.read_text(encoding="utf-8")).substitute(values)
    return files


def _read_template(name: str) -> str:
    return (TEMPLATES / f"{name}{SUFFIX}").read_text(encoding="utf-8")


def _name_values(name: str) -> dict[str, str]:
    """Return the template values of a name: for `my_sums` also `MySums` and `My sums`."""
    parts = [part for part in name.split("_") if part]
    return {"name": name, "Name": "".join(part.capitalize() for part in parts), "title": " ".join(parts).capitalize()}


def _server_values(reused: ReusedVerifier | None, roots: Sequence[Path]) -> dict[str, str]:
    """Return the template values `settings`, which is YAML for the verifier's server block, and `domain`."""
    settings: dict[str, Any] = {"entrypoint": "app.py", "domain": "other", "verified": False}
    if reused is not None:
        settings = _verifier_settings(reused.verifier, roots)
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    return {"settings": textwrap.indent(text.rstrip(), "      "), "domain": str(settings.get("domain", "other"))}


def _verifier_settings(verifier: str, roots: Sequence[Path]) -> dict[str, Any]:
    """Return the settings of an existing resources server; raise ConfigError if it cannot be reused."""
    folder, location = _verifier_folder(verifier, roots), f"--reuse-verifier {verifier}"
    if folder is None:
        raise ConfigError(f"resources_servers/{verifier}/app.py not found", where=location)
    if not FIXTURE.search((folder / "app.py").read_text(encoding="utf-8")):
        fix = "copy the one that `gym env init` writes"
        raise ConfigError(f"{folder / 'app.py'} exports no VERIFIER_FIXTURE", where=location, fix=fix)
    config = folder / "configs" / f"{verifier}.yaml"
    tree = yaml.safe_load(config.read_text(encoding="utf-8")) if config.is_file() else {}
    for server in instances_of(tree, "resources_servers") if isinstance(tree, dict) else ():
        if server.implementation == verifier and server.fields:
            return dict(server.fields)
    return {"entrypoint": "app.py", "domain": "other"}


def _verifier_folder(verifier: str, roots: Sequence[Path]) -> Path | None:
    """Return the folder of a resources server in the first root that has it."""
    folders = [root / "resources_servers" / verifier for root in roots]
    return next((folder for folder in folders if (folder / "app.py").is_file()), None)


def _example_rows(verifier: str, roots: Sequence[Path], target: Path) -> dict[Path, str]:
    """Return a file with the first example rows of a verifier, without their agents: it accepts no other fields."""
    folder = _verifier_folder(verifier, roots)
    source = folder / "data" / "example.jsonl" if folder is not None else None
    if source is None or not source.is_file():
        return {}
    with source.open("rb") as lines:
        filled = ((number, line) for number, line in enumerate(lines, start=1) if not line.isspace())
        rows = [parse_row(line, f"{source}:{number}") for number, line in islice(filled, REUSED_ROWS)]
    kept = [{key: value for key, value in row.items() if key != "agent_ref"} for row in rows]
    return {target: "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept)}


def _dataset_values(kind: Kind, name: str) -> dict[str, str]:
    """Return the template values of the datasets, as YAML for the configuration and for the manifest."""
    folder = f"{FOLDERS[kind]}/{name}"
    datasets = [{"name": "example", "type": "example", "jsonl_fpath": f"{folder}/data/example.jsonl"}]
    if kind == "benchmark":
        benchmark = {
            "name": name,
            "type": "benchmark",
            "jsonl_fpath": f"{folder}/data/{name}.jsonl",
            "prepare_script": f"{folder}/prepare.py",
            "prompt_config": f"{folder}/prompt.yaml",
        }
        datasets = [benchmark, *datasets]
    text = yaml.safe_dump(datasets, sort_keys=False).rstrip()
    return {"datasets": textwrap.indent(text, " " * 8), "manifest_datasets": textwrap.indent(text, "  ")}


def _profile_values(kind: Kind, name: str, profile: str) -> dict[str, str]:
    """Return the template values of a kind and profile: `more` manifest lines, `files` in the README, and others."""
    folder, more, files, driver_line = f"{FOLDERS[kind]}/{name}", "", "", ""
    commands = f"gym eval run --{kind} {name} --model-type openai_model"
    if profile == DRIVER_PROFILE:
        driver = f"{FOLDERS[kind]}.{name}.rollout_driver:collect"
        more += f"rollout_driver: {driver}\n"
        files += "| `rollout_driver.py` | collects the rollouts in place of the usual collector |\n"
        driver_line = f"rollout_collection_driver: {driver}\n"
    if kind == "benchmark":
        more += f"canonical_split: benchmark\nstandard_prompt_config: {folder}/prompt.yaml\n"
        files += "| `prepare.py`, `data/source.jsonl` | the source of the rows, and the script that writes them |\n"
        files += "| `prompt.yaml` | the prompt of the model |\n"
        commands = f"gym eval prepare --benchmark {name}\n{commands}"
    return {"more": more, "files": files, "commands": commands, "driver_line": driver_line}
