"""Environments of other packages by name: `SOURCE:ID?key=value`, and the configuration that runs each of them.

A source is a folder `resources_servers/<name>` with a `source.yaml`, an adapter and a list of ids (docs/adapters.md).
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from nemo_gym.config.problems import nearest_names
from nemo_gym.config.search_roots import CACHE_DIR
from nemo_gym.config.trees import Tree
from nemo_gym.errors import ConfigError
from nemo_gym.keys import AGENTS, FIRST_MOVE, MODELS, RANDOM_MOVE, RESOURCES, SCRIPT_PREFIX

ENVIRONMENT_KEY = "environment"
"""Key of a configuration file with one name, or a list."""
SOURCE_FILE, IDS_FILE = "source.yaml", "ids.json"
DEFAULT_SIZE = 20
MAX_SIZE = 1_000_000
ROW_SETTINGS = {
    "size": f"number of rows (default: {DEFAULT_SIZE})",
    "seed": "seed of the first row; the others follow (default: 0)",
    "split": "train, validation or test: rows with other seeds, or that split of the package's data",
    "max_turns": "maximum model turns",
}
"""Settings of every source."""
SPLITS = ("validation", "train", "test")
SPLIT_SEEDS = 1_000_000_000
"""Distance between the seeds of two splits, so that generated rows of one are not in another."""
WRITE_IDS = "python -m nemo_gym.adapters.id_writer "
"""The command that writes `ids.json`, to be followed by the name of the source."""
_NAME = re.compile(r"([a-z][a-z0-9_]*):(?![/\\])(.+)", re.DOTALL)


class UnknownEnvironment(ConfigError, ValueError):
    """No source has an environment of this name, or it cannot be run."""

    exit_status = 2


class SourceFile(BaseModel):
    """The content of `source.yaml`."""

    model_config = ConfigDict(extra="forbid")

    name: str = ""
    """The name of the source; by default the folder's name."""
    package: str
    """The name of the package in the registry."""
    description: str
    domain: str = "games"
    licence: str = "TBD"
    agent: Literal["gymnasium_agent", "simple_agent"] = "gymnasium_agent"
    max_turns: int | None = None
    server: dict[str, Any] = {}
    """Settings of the resources server."""
    settings: dict[str, str] = {}
    """Settings of a name that become fields of the rows -> their help."""
    arguments: bool = True
    """Other settings of a name are arguments of the environment's constructor."""
    has_own_rows: bool = False
    """`rows.py` of the folder makes the rows, with the package."""
    imports_ids: bool = False
    """An id may also be `module:Name`, which is in no list; without a list, any id may run."""


class IdList(BaseModel):
    """The content of `ids.json`."""

    version: str = ""
    ids: dict[str, dict[str, Any]] = {}


@dataclass(frozen=True)
class EnvironmentSource:
    """A package with environments, and the folder of its adapter."""

    name: str
    folder: Path
    file: SourceFile

    @property
    def ids(self) -> Mapping[str, Mapping[str, Any]]:
        """The ids of the package with what is known of each; `refused` is the reason why one cannot be run."""
        return self.id_list.ids

    @property
    def version(self) -> str:
        """The version of the package that the list of ids was made with."""
        return self.id_list.version

    @cached_property
    def id_list(self) -> "IdList":
        """The content of `ids.json`; without the file there are no ids."""
        path = self.folder / IDS_FILE
        try:
            return IdList.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return IdList()
        except (ValidationError, OSError) as error:
            problem = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error.strerror
            raise ConfigError(f"cannot be read: {problem}", where=str(path), fix=WRITE_IDS + self.name) from None

    @property
    def runs_any_name(self) -> bool:
        """The environments are packages, so an id is a name of which there is no list."""
        return self.file.imports_ids and bool(self.version) and not self.ids

    @property
    def runnable_ids(self) -> list[str]:
        return [name for name, facts in self.ids.items() if "refused" not in facts]


@dataclass(frozen=True)
class EnvironmentName:
    """One environment of a source, with its settings."""

    source: EnvironmentSource
    id: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        settings = "&".join(f"{key}={_setting_text(value)}" for key, value in sorted(self.settings.items()))
        return f"{self.source.name}:{self.id}" + (f"?{settings}" if settings else "")

    @property
    def size(self) -> int:
        return int(self.settings.get("size", DEFAULT_SIZE))

    @property
    def split(self) -> str:
        return str(self.settings.get("split", SPLITS[0]))

    @property
    def first_seed(self) -> int:
        return int(self.settings.get("seed", 0)) + SPLIT_SEEDS * SPLITS.index(self.split)

    @property
    def row_fields(self) -> dict[str, Any]:
        """The settings that the source declares, which are fields of every row."""
        return {key: value for key, value in self.settings.items() if key in self.source.file.settings}

    @property
    def arguments(self) -> dict[str, Any]:
        """The settings for the constructor of the environment."""
        declared = {*ROW_SETTINGS, *self.source.file.settings}
        return {key: value for key, value in self.settings.items() if key not in declared}

    @property
    def instance(self) -> str:
        """The name of the server instance."""
        slug = re.sub(r"[^a-z0-9]+", "_", self.id.lower()).strip("_")[:60]
        suffix = f"_{self._digest(self.text)[:6]}" if self.settings else ""
        return f"{self.source.name}_{slug}{suffix}"

    @property
    def rows_path(self) -> Path:
        """The file of the rows; another version of the adapter or of its package has another file."""
        folder = self.source.folder
        names = (SOURCE_FILE, IDS_FILE, "rows.py", "requirements.txt")
        contents = [path.read_bytes() for name in names if (path := folder / name).is_file()]
        digest = self._digest(self.text, *contents, *self._data_stamp())
        return CACHE_DIR / "environments" / self.source.name / f"{self.instance}-{digest[:12]}.jsonl"

    def _data_stamp(self) -> list[bytes]:
        """Return what changes with the file of the setting `data`."""
        data = self.settings.get("data") if "data" in self.source.file.settings else None
        if data is None:
            return []
        try:
            stat = Path(str(data)).stat()
        except OSError as error:
            raise UnknownEnvironment(f"{data}: {error.strerror}", where=self.text) from None
        return [f"{stat.st_size} {stat.st_mtime_ns}".encode()]

    @staticmethod
    def _digest(text: str, *contents: bytes) -> str:
        return hashlib.sha256(b"\0".join([text.encode(), *contents])).hexdigest()


def _setting_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def is_source_name(text: str) -> bool:
    """Return whether a name has the form `SOURCE:ID`; a path of a file has not."""
    return _NAME.fullmatch(text) is not None and not text.endswith((".yaml", ".yml"))


def refuse_source_names(names: Sequence[str]) -> None:
    """Raise an error for the first name of another package's environment, for commands that test our verifiers."""
    for name in filter(is_source_name, names):
        problem = "its package grades it, so there is no verifier of ours to test"
        raise UnknownEnvironment(problem, where=name, fix=f"gym eval run --environment '{name}'")


def find_environment_sources(roots: Sequence[Path]) -> dict[str, EnvironmentSource]:
    """Return the sources in the search roots by name; an earlier root has precedence.

    Raises:
        ConfigError: a `source.yaml` is invalid.
    """
    sources: dict[str, EnvironmentSource] = {}
    for root in roots:
        for path in sorted((root / RESOURCES).glob(f"*/{SOURCE_FILE}")):
            source = _read_source(path)
            sources.setdefault(source.name, source)
    return sources


def _read_source(path: Path) -> EnvironmentSource:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        file = SourceFile.model_validate(content)
        return EnvironmentSource(file.name or path.parent.name, path.parent.resolve(), file)
    except (yaml.YAMLError, ValidationError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", where=str(path), fix="docs/adapters.md") from None


def parse_name(text: str, roots: Sequence[Path]) -> EnvironmentName:
    """Parse `SOURCE:ID?key=value&…` and check source, id and settings.

    Raises:
        UnknownEnvironment: one of them is unknown or cannot be run; the error names similar ones.
    """
    match = _NAME.fullmatch(text)
    if match is None:
        raise UnknownEnvironment(f"'{text}' is not of the form SOURCE:ID", fix="gym list environments --source all")
    sources = find_environment_sources(roots)
    source = sources.get(match[1])
    if source is None:
        close = nearest_names(match[1], sources, n=3)
        fix = " or ".join(f"{name}:{match[2]}" for name in close) or f"one of {', '.join(sources)}"
        raise UnknownEnvironment(f"unknown source '{match[1]}'", where=text, fix=fix)
    environment_id, _, query = match[2].partition("?")
    _check_id(source, environment_id)
    name = EnvironmentName(source, environment_id, _parse_settings(query, text))
    _check_settings(name, text)
    return name


def _check_id(source: EnvironmentSource, environment_id: str) -> None:
    """Check that an id is in the list of its source, or may be imported."""
    where = f"{source.name}:{environment_id}"
    facts = source.ids.get(environment_id)
    if facts is None and (source.runs_any_name or (source.file.imports_ids and ":" in environment_id)):
        return
    if facts is None and not source.ids:
        raise UnknownEnvironment(f"{source.name} has no list of ids", where=where, fix=WRITE_IDS + source.name)
    if facts is None:
        names = nearest_names(environment_id, source.runnable_ids, n=3, cutoff=0.4)
        choices = " or ".join(f"{source.name}:{name}" for name in names)
        advice = f"{choices}; " if choices else ""
        problem = f"{source.name} {source.version} has no environment '{environment_id}'"
        raise UnknownEnvironment(problem, where=where, fix=f"{advice}gym list environments --source {source.name}")
    if "refused" in facts:
        raise UnknownEnvironment(f"cannot be run: {facts['refused']}", where=where)


def _parse_settings(query: str, where: str) -> dict[str, Any]:
    """Return the settings of a name; their values are read as YAML, so that `3` is a number."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), separator="&")
        settings = {key: _setting_value(value) for key, value in pairs}
    except (ValueError, RecursionError, yaml.YAMLError):
        fix = "SOURCE:ID?size=50&seed=3, in quotes"
        raise UnknownEnvironment(f"'{query}' is not of the form key=value&key=value", where=where, fix=fix) from None
    if len(settings) < len(pairs):
        raise UnknownEnvironment("a setting is given twice", where=where)
    return settings


def _setting_value(text: str) -> Any:
    """Return what a text is in YAML, or the text if that is nothing that a row can contain, such as a date."""
    value = yaml.safe_load(text)
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return text
    return value


def _check_settings(name: EnvironmentName, where: str) -> None:
    """Check the settings of every source, and the names of the others."""
    for key, low in (("size", 1), ("seed", 0), ("max_turns", 1)):
        value, high = name.settings.get(key, low), MAX_SIZE if key == "size" else SPLIT_SEEDS - MAX_SIZE
        if type(value) is not int or not low <= value <= high:
            raise UnknownEnvironment(f"{key}={value} is not a whole number from {low} to {high:,}", where=where)
    players = name.row_fields.get("num_players", 1)
    if type(players) is not int or players < 1:
        raise UnknownEnvironment(f"num_players={players} is not a whole number from 1", where=where)
    if name.split not in SPLITS:
        raise UnknownEnvironment(f"split={name.split} is not one of {', '.join(SPLITS)}", where=where)
    if name.arguments and not name.source.file.arguments:
        unknown, declared = next(iter(name.arguments)), [*ROW_SETTINGS, *name.source.file.settings]
        close = nearest_names(unknown, declared)
        fix = close[0] if close else f"one of {', '.join(declared)}"
        raise UnknownEnvironment(f"unknown setting '{unknown}'", where=where, fix=fix)


def environment_tree(name: EnvironmentName) -> Tree:
    """Return the configuration that runs an environment: its resources server, its agent, and its rows."""
    source, instance = name.source, name.instance
    server: Tree = {
        "entrypoint": "app.py",
        "domain": source.file.domain,
        "description": f"{name.id} of {source.name} {source.version}".rstrip(),
        **source.file.server,
    }
    for setting in ("opponent", "grader"):
        model = name.settings.get(setting)
        if setting in source.file.settings and isinstance(model, str) and is_model_name(model):
            server["opponent_model"] = {"type": MODELS, "name": model}
    dataset: Tree = {
        "name": name.text,
        "type": "train" if name.split == "train" else "validation",
        "license": source.file.licence,
        "jsonl_fpath": str(name.rows_path),
    }
    agent: Tree = {
        "entrypoint": "app.py",
        "resources_server": {"type": RESOURCES, "name": instance},
        "model_server": {"type": MODELS, "name": "policy_model"},
        "datasets": [dataset],
    }
    max_turns = name.settings.get("max_turns", source.file.max_turns)
    if max_turns is not None:
        agent["max_steps"] = max_turns
    return {
        instance: {RESOURCES: {source.folder.name: server}},
        f"{instance}_agent": {AGENTS: {source.file.agent: agent}},
    }


def is_model_name(opponent: str) -> bool:
    """Return whether an opponent is a model server, not a scripted player."""
    return opponent not in (FIRST_MOVE, RANDOM_MOVE) and not opponent.startswith(SCRIPT_PREFIX)


def source_names(value: Any, where: str | None) -> list[str]:
    """Return the names in the key `environment`: one or a list; [] for a mapping, which is a server instance.

    Raises:
        ConfigError: the value is something else.
    """
    if value is None or isinstance(value, Mapping):
        return []
    names = value if isinstance(value, list) else [value]
    for name in names:
        if not isinstance(name, str) or not is_source_name(name):
            problem = f"{ENVIRONMENT_KEY}: {name!r} is not of the form SOURCE:ID"
            raise ConfigError(problem, where=where, fix="gym list environments --source all shows all")
    return list(names)
