"""Configuration files: finding them, reading them, following their own `config_paths`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nemo_gym.config.merge import Tree
from nemo_gym.config.problems import did_you_mean
from nemo_gym.config.renamed import current_path, rename_note
from nemo_gym.config.yaml_text import MAX_BYTES, read_yaml
from nemo_gym.errors import ConfigError, ConfigPathNotFoundError, MalformedConfigPathsError

CONFIG_PATHS = "config_paths"
MAX_FILES = 1000
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Source:
    """One tree that goes into the configuration. `text` is kept to tell line and column if something is wrong."""

    kind: Literal["file", "env", "initial"]
    name: str
    tree: Tree = field(repr=False)
    text: str | None = field(default=None, repr=False)
    warnings: tuple[str, ...] = ()


def read_source(path: Path, *, kind: Literal["file", "env"] = "file") -> Source:
    """The mapping in one YAML file."""
    name = shown_path(path)
    text = _read_text(path, name)
    document = read_yaml(text, name)
    if not isinstance(document.value, dict):
        kind_found = "a list" if isinstance(document.value, list) else "a single value"
        raise ConfigError(f"holds {kind_found}, not a mapping", where=name, fix="start with 'key: value' lines")
    return Source(kind, name, document.value, text, document.warnings)


def shown_path(path: Path) -> str:
    """Relative to the working directory when it lies below it."""
    try:
        return str(path.relative_to(Path.cwd())) if path.is_absolute() else str(path)
    except (ValueError, OSError):
        return str(path)


def _read_text(path: Path, name: str) -> str:
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
    """The file an entry of `config_paths` means: itself if absolute, else the first one under the roots."""
    if "\0" in entry or not entry.strip():
        raise ConfigPathNotFoundError(f"{entry!r} is not a path")
    path = Path(entry).expanduser() if entry.startswith("~") else Path(entry)
    candidates = [path] if path.is_absolute() else [root / path for root in roots]
    now = current_path(path)
    try:
        found = next((candidate for candidate in candidates if candidate.is_file()), None)
    except OSError as error:
        raise ConfigPathNotFoundError(f"'{_short(entry)}': {error.strerror or error}") from None
    if found is not None:
        return found
    if now is not None:
        return find_file(str(now), roots)
    if any(candidate.is_dir() for candidate in candidates):
        raise ConfigPathNotFoundError(f"'{entry}' is a folder, not a config file", fix="name the .yaml file in it")
    places = "".join(f"\n    {candidate}" for candidate in candidates)
    guess = did_you_mean(path.name, _siblings(candidates))
    raise ConfigPathNotFoundError(f"config file '{_short(entry)}' does not exist{guess}\n  looked for{places}")


def _short(text: str) -> str:
    return text if len(text) <= 300 else text[:300] + "…"


def _siblings(candidates: Sequence[Path]) -> set[str]:
    found: set[str] = set()
    for candidate in candidates:
        if candidate.parent.is_dir():
            found.update(file.name for file in candidate.parent.iterdir() if file.suffix in {".yaml", ".yml"})
    return found


def path_list(value: Any, *, where: str | None) -> list[str]:
    """`config_paths` as a list of paths, or a clear refusal."""
    if value is None:
        return []
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return value
    if isinstance(value, list):
        wrong = next(entry for entry in value if not isinstance(entry, str))
        raise MalformedConfigPathsError(f"{CONFIG_PATHS} holds {wrong!r}, which is not a path", where=where)
    fix = f"+{CONFIG_PATHS}=[{value}]" if isinstance(value, str) else f"{CONFIG_PATHS}: [a.yaml, b.yaml]"
    what = f"{CONFIG_PATHS} must be a list of paths, not {_noun(value)}"
    raise MalformedConfigPathsError(what, where=where, fix=fix)


def _noun(value: Any) -> str:
    return "a mapping" if isinstance(value, dict) else f"the single value {value!r}"


@dataclass
class Loaded:
    """All config files in the order in which they are merged: what a file includes comes before it."""

    sources: list[Source] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class _Includes:
    """Reads the include tree depth first and remembers the files it is inside of."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = roots
        self.result = Loaded()
        self.open: list[Path] = []
        self.seen: set[Path] = set()

    def visit(self, entry: str, included_from: str | None) -> None:
        try:
            path = find_file(entry, self.roots)
        except ConfigPathNotFoundError as error:
            raise ConfigPathNotFoundError(error.problem, where=included_from, fix=error.fix) from None
        if current_path(entry) is not None and not path.match(entry):
            self.result.warnings.append(rename_note(entry))
        identity = path.resolve()
        if identity in self.open:
            round_trip = " → ".join(shown_path(step) for step in [*self.open[self.open.index(identity) :], identity])
            raise ConfigError(f"{CONFIG_PATHS} includes itself: {round_trip}", where=included_from)
        if identity in self.seen:
            self.result.warnings.append(
                f"several configs reference '{entry}'; it is read once (to reuse a block: _inherit_from, _copy)"
            )
            return
        if len(self.seen) >= MAX_FILES:
            raise ConfigError(f"more than {MAX_FILES} config files", where=included_from)
        self.seen.add(identity)
        source = read_source(path)
        self.open.append(identity)
        children = path_list(source.tree.get(CONFIG_PATHS), where=source.name)
        self.result.paths.extend(child for child in children if child not in self.result.paths)
        for child in children:
            self.visit(child, source.name)
        self.open.pop()
        self.result.sources.append(source)
        self.result.warnings.extend(source.warnings)


def load_files(entries: Sequence[str], roots: Sequence[Path], *, named_in: str | None = None) -> Loaded:
    """Read the files and everything they include, each once."""
    includes = _Includes(roots)
    includes.result.paths = list(dict.fromkeys(entries))
    for entry in includes.result.paths.copy():
        includes.visit(entry, named_in)
    return includes.result
