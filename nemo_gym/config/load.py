"""Read configuration files, including the files in their `config_paths`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nemo_gym.config.environment_sources import (
    ENVIRONMENT_KEY,
    environment_tree,
    is_source_name,
    parse_name,
    source_names,
)
from nemo_gym.config.search_roots import find_file
from nemo_gym.config.trees import Tree
from nemo_gym.config.yaml_text import MAX_BYTES, read_yaml
from nemo_gym.errors import ConfigError, ConfigPathNotFoundError, MalformedConfigPathsError

CONFIG_PATHS = "config_paths"
MAX_FILES = 1000
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class ConfigSource:
    """One source of the configuration. Its `text` is needed to report line and column of a problem."""

    kind: Literal["file", "env", "initial"]
    name: str
    tree: Tree = field(repr=False)
    text: str | None = field(default=None, repr=False)
    warnings: tuple[str, ...] = ()


def read_source(path: Path, *, kind: Literal["file", "env"] = "file") -> ConfigSource:
    """Read a YAML file, which must contain a mapping."""
    name = display_path(path)
    text = _read_text(path, name)
    document = read_yaml(text, name)
    if not isinstance(document.value, dict):
        content = "a list" if isinstance(document.value, list) else "a single value"
        raise ConfigError(f"contains {content}, not a mapping", where=name, fix="start with 'key: value' lines")
    return ConfigSource(kind, name, document.value, text, document.warnings)


def display_path(path: Path) -> str:
    """Return a path as text, relative to the working directory if the path is inside it."""
    try:
        return str(path.relative_to(Path.cwd())) if path.is_absolute() else str(path)
    except (ValueError, OSError):
        return str(path)


def _read_text(path: Path, name: str) -> str:
    """Read a file as UTF-8; raise ConfigError if it is too large, unreadable or in another encoding."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            fix = "move rows to a .jsonl dataset"
            raise ConfigError(f"is {size:,} bytes; a config file may have {MAX_BYTES:,}", where=name, fix=fix)
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", where=name) from None
    if raw.startswith(_UTF16_MARKS):
        raise ConfigError("is written in UTF-16", where=name, fix="save it as UTF-8")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError("is not UTF-8 text", where=f"{name}:{line}", fix="save it as UTF-8") from None


def path_list(value: Any, *, location: str | None) -> list[str]:
    """Return the value of `config_paths` as a list of paths.

    Raises:
        MalformedConfigPathsError: the value is not a list of texts.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        fix = f"+{CONFIG_PATHS}=[{value}]" if isinstance(value, str) else f"{CONFIG_PATHS}: [a.yaml, b.yaml]"
        noun = "a mapping" if isinstance(value, dict) else f"the single value {value!r}"
        raise MalformedConfigPathsError(f"{CONFIG_PATHS} must be a list of paths, not {noun}", where=location, fix=fix)
    for entry in value:
        if not isinstance(entry, str):
            raise MalformedConfigPathsError(f"{CONFIG_PATHS} contains {entry!r}, which is not a path", where=location)
    return value


@dataclass
class ConfigFiles:
    """All config files in merge order: an included file is before the file that includes it."""

    sources: list[ConfigSource] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    """The entries of `config_paths`, given and included."""
    warnings: list[str] = field(default_factory=list)


def load_files(entries: Sequence[str], roots: Sequence[Path], *, named_in: str | None = None) -> ConfigFiles:
    """Read the files and the files that they include, each once. `named_in` is the location of `entries` in errors."""
    files = ConfigFiles(paths=list(dict.fromkeys(entries)))
    seen: set[Path] = set()
    include_stack: list[Path] = []  # the files whose includes are being read

    def read(entry: str, included_from: str | None) -> None:
        """Read the file that `entry` names, and add it after the files that it includes."""
        if is_source_name(entry):
            files.sources.append(ConfigSource("file", entry, environment_tree(parse_name(entry, roots))))
            return
        try:
            path = find_file(entry, roots)
        except ConfigPathNotFoundError as error:
            raise ConfigPathNotFoundError(error.problem, where=included_from, fix=error.fix) from None
        real_path = path.resolve()
        if real_path in include_stack:
            steps = [*include_stack[include_stack.index(real_path) :], real_path]
            cycle = " → ".join(display_path(step) for step in steps)
            raise ConfigError(f"the file includes itself: {cycle}", where=display_path(real_path))
        if real_path in seen:
            files.warnings.append(
                f"several configs reference '{entry}'; it is read once (to reuse a block: _inherit_from, _copy)"
            )
            return
        if len(seen) >= MAX_FILES:
            raise ConfigError(f"more than {MAX_FILES} config files", where=included_from)
        seen.add(real_path)
        source = read_source(path)
        includes = path_list(source.tree.get(CONFIG_PATHS), location=source.name)
        includes = [*includes, *source_names(source.tree.get(ENVIRONMENT_KEY), source.name)]
        files.paths += [include for include in includes if include not in files.paths]
        include_stack.append(real_path)
        for include in includes:
            read(include, source.name)
        include_stack.pop()
        files.sources.append(source)
        files.warnings += source.warnings

    for entry in list(files.paths):  # a copy, because `read` adds the included paths
        read(entry, named_in)
    return files
