"""The identity of a run, for resume matching: its rows, plan, server configuration and code.

`<stem>_run.json` holds it. Only the same run is resumed. Nothing in it depends on the machine (addresses, ports, paths
of this host) and it holds no secret, so a run can continue on another machine and the file can be shared.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from nemo_gym.config.instances import server_instances
from nemo_gym.config.search_roots import _resolve_under_cwd_or_install
from nemo_gym.config.secrets import mask_secrets
from nemo_gym.journal import StoreError, read_rows, unwritable_file
from nemo_gym.rollouts.plan import Line, Repeats
from nemo_gym.rollouts.run_files import output_of, run_path_for
from nemo_gym.wire.stored_rollout import RolloutId, RolloutKey

FORMAT = 1
DISTRIBUTION = "nemo-gym"

_MACHINE_FIELDS = frozenset({"host", "port", "num_workers", "hosting", "datasets", "max_concurrent_requests"})
"""Server fields that affect placement and speed but not results, and `datasets`, because rows have their own hash."""
_ADDRESS_ENDING = "base_url"
_GLOBAL_FIELDS = ("skip_verification", "skip_verification_reward", "response_cache")
_SKIPPED_FOLDERS = frozenset({"tests", "data", "__pycache__", "node_modules", "build", "dist"})
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:.*\bextra\s*==\s*['\"](?P<extra>[^'\"]+))?")
_RELEVANT_EXTRAS = frozenset({None, "math", "embedded"})
_IRRELEVANT_PACKAGES = frozenset({"rich", "uv", "packaging"})
"""Display and installation packages. Like the other extras (trackers, test tools), they do not affect results."""
_ABSENT = "(nothing)"
_LONGEST_VALUE = 80


class Identity(BaseModel):
    """The properties of a run that must be equal for it to be resumed. Aliases are the names in the file."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    rows: str
    """Hash of the input lines that are used."""
    repeats: Repeats = Field(default=1, alias="num_repeats")
    plan: dict[str, Any]
    """The options that turn rows into jobs: limit, agent, prompt, sampling parameters, skills, seeds."""
    servers: dict[str, Any]
    """The fields of all servers that can affect results, by dotted name, with secrets masked."""
    code: dict[str, str]
    """Versions of packages and hashes of server folders."""
    limits: dict[str, Any] = {}
    """Recorded but not compared; a resumed run may have other limits."""
    file_stat: dict[str, Any] = Field(default={}, alias="input")
    """Name, size and time of the input file; while they are unchanged, the rows need not be hashed again."""
    planned: dict[str, Any] = {}
    """Count, hash, size and time of the planned rows (`<stem>_materialized_inputs.jsonl`); see `check_planned_rows`."""

    def with_values(self, **changes: Any) -> "Identity":
        """Return a copy with other values of some properties."""
        return self.model_copy(update=changes)

    def differences(self, current: "Identity") -> list[str]:
        """Describe each difference of rows, plan, servers and code; empty if both identify the same run."""
        lines: list[str] = []
        if self.rows != current.rows:
            lines.append("the input rows, or how many of them are used")
        lines += [*_changes(self.plan, current.plan), *_changes(self.servers, current.servers)]
        return lines + [f"code: {line}" for line in _changes(self.code, current.code)]


class RowHash:
    """The hash of input lines, computed while they are iterated."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def hashing(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Yield the lines unchanged and add each to the hash."""
        for line in lines:
            self._hash.update(line[1].strip() + b"\n")
            yield line

    def text(self) -> str:
        return f"blake2b:{self._hash.hexdigest()}"


def file_stat(path: Path) -> dict[str, Any]:
    """Return name, size and modification time of a file, from which a change is detected; empty if it is missing."""
    try:
        stat = path.stat()
    except OSError:
        return {}
    return {"name": path.name, "size": stat.st_size, "modified_ns": stat.st_mtime_ns}


def describe_planned_rows(path: Path) -> dict[str, Any]:
    """Return the properties of the planned rows by which a damaged file is recognised later."""
    count, digest = _hash_lines(path, path.stat().st_size)
    return {"count": count, "hash": digest, **file_stat(path)}


def check_planned_rows(path: Path, planned: Mapping[str, Any] | None = None) -> None:
    """Check that the planned rows are those that the run file describes. They are read only if size or time changed.

    Further repeats of the tasks described are accepted: a run that was killed while it added repeats has not recorded
    them. Without `planned`, the description is read from the run file next to `path`; if it cannot be read, nothing is
    checked.

    Raises:
        StoreError: rows are missing, changed or added.
    """
    if planned is None:
        try:
            planned = Identity.model_validate_json(run_path_for(output_of(path)).read_bytes()).planned
        except (OSError, ValueError):
            return
    current = file_stat(path)
    is_unchanged = {**planned, **current} == planned  # `planned` contains the name, size and time of that moment
    if not planned or not current or is_unchanged:
        return
    count, digest = _hash_lines(path, planned["size"])
    problem = None
    if digest != planned["hash"]:
        problem = "the planned rows were changed after the run began"
        if count < planned["count"]:
            problem = f"the planned rows were damaged after the run began: {count} of {planned['count']} rows are left"
    elif current["size"] > planned["size"] and (line := _first_invalid_line(path, planned["count"])) is not None:
        problem = f"a row was added after the run began: line {line} is no further repeat of a planned task"
    if problem is not None:
        raise StoreError(problem, where=str(path), fix="restore the file from a copy, or start over without --resume")


def _first_invalid_line(path: Path, count: int) -> int | None:
    """Return the first line after the first `count` that is no further repeat of an earlier task; None without one."""
    keys: set[RolloutId] = set()
    for line, row in enumerate(read_rows(path), start=1):
        try:
            task, rollout = RolloutKey.of(row).rollout_id
        except (ValueError, TypeError):
            return line
        if line > count and ((task, rollout) in keys or (task, rollout - 1) not in keys):
            return line
        keys.add((task, rollout))
    return None


def _hash_lines(path: Path, size: int) -> tuple[int, str]:
    """Return the number of lines in the first `size` bytes of a file, and their hash."""
    digest, count = hashlib.blake2b(digest_size=16), 0
    with path.open("rb") as file:
        while block := file.read(min(size, 1 << 20)):
            size -= len(block)
            count += block.count(b"\n")
            digest.update(block)
    return count, f"blake2b:{digest.hexdigest()}"


def server_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that can affect results, of each server and global ones, by dotted name."""
    instances = server_instances(config).values()
    fields = {f"{instance.name}.{instance.implementation}": dict(instance.fields) for instance in instances}
    leaves: dict[str, Any] = {}
    for name, block in mask_secrets(fields).items():
        relevant = {key: value for key, value in block.items() if str(key) not in _MACHINE_FIELDS}
        leaves.update(_leaves(relevant, name))
    for name in _GLOBAL_FIELDS:
        if config.get(name) is not None:
            leaves[name] = config.get(name)
    return dict(sorted(leaves.items()))


def code_versions(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of Python, this package and its requirements, and a hash of every server folder."""
    code = {"python": ".".join(platform.python_version_tuple()[:2]), **_package_versions()}
    for instance in server_instances(config).values():
        name = f"{instance.server_type}/{instance.implementation}"
        folder = _resolve_under_cwd_or_install(name)
        if name not in code and folder.is_dir():
            code[name] = _source_hash(folder)
    return dict(sorted(code.items()))


def write_identity(
    path: Path, identity: Identity, old_content: Mapping[str, Any] | None = None, note: str = ""
) -> None:
    """Write the identity; keep the run id, start time and history of `old_content` and add `note` to the history."""
    earlier = old_content or {}
    history = [*earlier.get("resumed", ()), *([{"at": _now(), "note": note}] if note else [])]
    content = {
        "format": FORMAT,
        "run_id": earlier.get("run_id") or uuid.uuid4().hex,
        "started_at": earlier.get("started_at") or _now(),
        **identity.model_dump(by_alias=True),
        **({"resumed": history} if history else {}),
    }
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.write_text(json.dumps(content, indent=2, default=str, ensure_ascii=False) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise unwritable_file(path, error) from error


def read_identity(path: Path) -> tuple[Identity, dict[str, Any]] | None:
    """Read the identity and the whole content of a file; None if the file is missing.

    Raises:
        StoreError: the file cannot be parsed.
    """
    try:
        content = json.loads(path.read_bytes())
        return Identity.model_validate(content), content
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise StoreError(
            f"the file has no readable run identity: {error!r}", where=str(path), fix="start over without resuming"
        ) from error


def has_same_rows(stored: Identity, current: Identity) -> bool:
    """Return whether the input file and the row limit are unchanged, so that rows need not be hashed again."""
    return (
        bool(current.file_stat)
        and stored.file_stat == current.file_stat
        and all(stored.plan.get(name) == current.plan.get(name) for name in ("limit", "selection"))
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield `name: old -> new` for each name whose value differs."""
    for name in sorted({*before, *after}):
        old, new = _short_text(before.get(name, _ABSENT)), _short_text(after.get(name, _ABSENT))
        if old != new:
            yield f"{name}: {old} -> {new}"


def _short_text(value: Any) -> str:
    """Return a value as JSON; a long text is cut and gets a hash, so that different values still differ."""
    text = value if value == _ABSENT else json.dumps(value, default=str, sort_keys=True, ensure_ascii=False)
    if len(text) <= _LONGEST_VALUE:
        return text
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return f"{text[: _LONGEST_VALUE - 10]}… ({digest})"


def _leaves(node: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of every leaf below `name`, except addresses (`*base_url`)."""
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            if not str(key).endswith(_ADDRESS_ENDING):
                yield from _leaves(value, f"{name}.{key}")
    else:
        yield name, node


def _package_versions() -> dict[str, str]:
    """Return the installed versions of this package and of those requirements that can affect results."""
    try:
        requirements = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    matches = (match for text in requirements if (match := _REQUIREMENT.match(text)))
    names = {match["name"] for match in matches if match["extra"] in _RELEVANT_EXTRAS} - _IRRELEVANT_PACKAGES
    versions: dict[str, str] = {}
    for name in [DISTRIBUTION, *names]:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # an extra that is not installed
    return versions


def _source_hash(folder: Path) -> str:
    """Hash the Python files of a server folder, without tests and data."""
    digest = hashlib.blake2b(digest_size=8)
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS and not name.startswith("."))
        for name in sorted(files):
            if name.endswith(".py"):
                path = Path(root, name)
                digest.update(f"{path.relative_to(folder)}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()
