"""Find and read configuration files, including the files in their `config_paths`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nemo_gym.config.merge import Tree
from nemo_gym.config.path_aliases import current_path, rename_notice
from nemo_gym.config.problems import did_you_mean
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
    """Return a path as text, relative to the working directory if it is inside it."""
    try:
        return str(path.relative_to(Path.cwd())) if path.is_absolute() else str(path)
    except (ValueError, OSError):
        return str(path)


def _read_text(path: Path, name: str) -> str:
    """Read a file as UTF-8; raises ConfigError if it is too large, unreadable or in another encoding."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            fix = "rows belong in a .jsonl dataset"
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


def find_file(entry: str, roots: Sequence[Path]) -> Path:
    """Return the file of an entry of `config_paths`; a relative path is searched in the roots, in order.

    Raises:
        ConfigPathNotFoundError: no such file exists.
    """
    if "\0" in entry or not entry.strip():
        raise ConfigPathNotFoundError(f"{entry!r} is not a path")
    path = Path(entry).expanduser() if entry.startswith("~") else Path(entry)
    candidates = [path] if path.is_absolute() else [root / path for root in roots]
    short = entry if len(entry) <= 300 else entry[:300] + "…"
    try:
        file = next((candidate for candidate in candidates if candidate.is_file()), None)
    except OSError as error:
        raise ConfigPathNotFoundError(f"'{short}': {error.strerror or error}") from None
    if file is not None:
        return file
    renamed = current_path(path)
    if renamed is not None:
        return find_file(str(renamed), roots)
    if any(candidate.is_dir() for candidate in candidates):
        raise ConfigPathNotFoundError(f"'{entry}' is a folder, not a config file", fix="name the .yaml file in it")
    searched = "".join(f"\n    {candidate}" for candidate in candidates)
    guess = did_you_mean(path.name, _yaml_siblings(candidates))
    raise ConfigPathNotFoundError(f"config file '{short}' does not exist{guess}\n  looked for{searched}")


def _yaml_siblings(candidates: Sequence[Path]) -> set[str]:
    folders = {candidate.parent for candidate in candidates if candidate.parent.is_dir()}
    return {file.name for folder in folders for file in folder.iterdir() if file.suffix in {".yaml", ".yml"}}


def path_list(value: Any, *, location: str | None) -> list[str]:
    """Return the value of `config_paths` as a list of paths.

    Raises:
        MalformedConfigPathsError: the value is not a list of texts.
    """
    if value is None:
        return []
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return value
    if isinstance(value, list):
        wrong = next(entry for entry in value if not isinstance(entry, str))
        raise MalformedConfigPathsError(f"{CONFIG_PATHS} contains {wrong!r}, which is not a path", where=location)
    fix = f"+{CONFIG_PATHS}=[{value}]" if isinstance(value, str) else f"{CONFIG_PATHS}: [a.yaml, b.yaml]"
    noun = "a mapping" if isinstance(value, dict) else f"the single value {value!r}"
    raise MalformedConfigPathsError(f"{CONFIG_PATHS} must be a list of paths, not {noun}", where=location, fix=fix)


@dataclass
class ConfigFiles:
    """All config files in merge order: an included file is before the file that includes it."""

    sources: list[ConfigSource] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class _IncludeReader:
    """Reads files and their includes, depth first. `include_stack` has the files whose includes are being read."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = roots
        self.result = ConfigFiles()
        self.include_stack: list[Path] = []
        self.seen: set[Path] = set()

    def read(self, entry: str, included_from: str | None) -> None:
        """Read the file of an entry and, before adding it, its includes."""
        try:
            path = find_file(entry, self.roots)
        except ConfigPathNotFoundError as error:
            raise ConfigPathNotFoundError(error.problem, where=included_from, fix=error.fix) from None
        if current_path(entry) is not None and not path.match(entry):
            self.result.warnings.append(rename_notice(entry))
        identity = path.resolve()
        if identity in self.include_stack:
            steps = [*self.include_stack[self.include_stack.index(identity) :], identity]
            cycle = " → ".join(display_path(step) for step in steps)
            raise ConfigError(f"{CONFIG_PATHS} includes itself: {cycle}", where=included_from)
        if identity in self.seen:
            self.result.warnings.append(
                f"several configs reference '{entry}'; it is read once (to reuse a block: _inherit_from, _copy)"
            )
            return
        if len(self.seen) >= MAX_FILES:
            raise ConfigError(f"more than {MAX_FILES} config files", where=included_from)
        self.seen.add(identity)
        source = read_source(path)
        self.include_stack.append(identity)
        children = path_list(source.tree.get(CONFIG_PATHS), location=source.name)
        self.result.paths.extend(child for child in children if child not in self.result.paths)
        for child in children:
            self.read(child, source.name)
        self.include_stack.pop()
        self.result.sources.append(source)
        self.result.warnings.extend(source.warnings)


def load_files(entries: Sequence[str], roots: Sequence[Path], *, named_in: str | None = None) -> ConfigFiles:
    """Read the files and their includes, each file once. `named_in` is the location that names the files."""
    reader = _IncludeReader(roots)
    reader.result.paths = list(dict.fromkeys(entries))
    for entry in reader.result.paths.copy():
        reader.read(entry, named_in)
    return reader.result
