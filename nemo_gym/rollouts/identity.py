"""Which run this is: its rows, what is made of them, the servers' configuration, the code.

`<stem>_run.json` says it. Only the same run is resumed. Nothing in it depends on the machine (addresses, ports, paths
of this host) and no secret is in it, so a run may be continued elsewhere and the file may be shown to anybody.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nemo_gym.catalog.roots import _resolve_under_cwd_or_install
from nemo_gym.config.secrets import mask_secrets
from nemo_gym.rollouts.blocks import server_blocks
from nemo_gym.rollouts.jsonl import StoreError, unwritable

FORMAT = 1
DISTRIBUTION = "nemo-gym"

_OF_THE_MACHINE = frozenset({"host", "port", "num_workers", "hosting", "datasets", "max_concurrent_requests"})
"""Fields of a server that say where and how fast it runs, not what it answers; its rows are known by themselves."""
_ADDRESS_ENDING = "base_url"
_SWITCHES = ("skip_verification", "skip_verification_reward")
_SKIPPED_FOLDERS = frozenset({"tests", "data", "__pycache__", "node_modules", "build", "dist"})
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:.*\bextra\s*==\s*['\"](?P<extra>[^'\"]+))?")
_EXTRAS_THAT_COUNT = frozenset({None, "math", "embedded"})
_PACKAGES_THAT_DO_NOT = frozenset({"rich", "uv", "packaging"})
"""What shows and installs, and requirements of other extras (trackers, test tools), changes no answer and no score."""
_ABSENT = "(nothing)"
_LONGEST_VALUE = 80


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What must be the same for two runs to be one."""

    rows: str
    """Hash of the input lines, as many as are used."""
    plan: Mapping[str, Any]
    """What is made of the rows: limit, agent, prompt, sampling parameters, skills, seeds."""
    repeats: int | Mapping[str, int] = 1
    servers: Mapping[str, Any]
    """Every field of every server by its dotted name, secrets masked."""
    code: Mapping[str, str]
    """Versions of packages and hashes of server folders."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Kept for the record; a resumed run may have others."""
    seen: Mapping[str, Any] = field(default_factory=dict)
    """Path, size and time of the input file: what saves hashing it again."""

    def differences(self, now: "Identity") -> list[str]:
        """What differs in `now` from this, one line each; empty when it is the same run."""
        found: list[str] = []
        if self.rows != now.rows:
            found.append("the input rows (or how many of them are used)")
        for title, before, after in (
            ("", self.plan, now.plan),
            ("", self.servers, now.servers),
            ("code: ", self.code, now.code),
        ):
            found += [f"{title}{line}" for line in _changed(before, after)]
        return found


class RowHash:
    """Hashes lines as they pass."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def over(self, lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        for number, line in lines:
            self._hash.update(line.strip() + b"\n")
            yield number, line

    def text(self) -> str:
        return f"blake2b:{self._hash.hexdigest()}"


def seen_file(path: Path) -> dict[str, Any]:
    """What tells that a file was not touched, without reading it."""
    try:
        found = path.stat()
    except OSError:
        return {}
    return {"name": path.name, "size": found.st_size, "modified_ns": found.st_mtime_ns}


def servers_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of all servers, and the switches for all of them, by dotted name."""
    blocks = server_blocks(config)
    fields = {f"{block.name}.{block.implementation}": dict(block.fields) for block in blocks.values()}
    leaves: dict[str, Any] = {}
    for name, block in mask_secrets(fields).items():
        kept = {key: value for key, value in block.items() if str(key) not in _OF_THE_MACHINE}
        leaves.update(_leaves(kept, name))
    for switch in _SWITCHES:
        if config.get(switch) is not None:
            leaves[switch] = config.get(switch)
    return dict(sorted(leaves.items()))


def code_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Versions of this package and what it needs, and a hash of the folder of every server."""
    code = {"python": ".".join(platform.python_version_tuple()[:2]), **_versions()}
    for block in server_blocks(config).values():
        place = f"{block.server_type}/{block.implementation}"
        folder = _resolve_under_cwd_or_install(place)
        if place not in code and folder.is_dir():
            code[place] = _hash_of_sources(folder)
    return dict(sorted(code.items()))


def write_identity(path: Path, identity: Identity, before: Mapping[str, Any] | None = None, note: str = "") -> None:
    """Write the identity; what an earlier file says about the start is kept, and `note` is added to its story."""
    began = before or {"run_id": uuid.uuid4().hex, "started_at": _now()}
    story = [*began.get("resumed", ()), *([{"at": _now(), "note": note}] if note else [])]
    content = {
        "format": FORMAT,
        "run_id": began.get("run_id") or uuid.uuid4().hex,
        "started_at": began.get("started_at") or _now(),
        "rows": identity.rows,
        "num_repeats": identity.repeats,
        "plan": identity.plan,
        "servers": identity.servers,
        "code": identity.code,
        "limits": identity.limits,
        "input": identity.seen,
        **({"resumed": story} if story else {}),
    }
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.write_text(json.dumps(content, indent=2, default=str, ensure_ascii=False) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error


def read_identity(path: Path) -> tuple[Identity, dict[str, Any]] | None:
    """The identity a file tells, and the file as it is; None when there is no file.

    Raises:
        StoreError: the file cannot be understood.
    """
    try:
        content = json.loads(path.read_bytes())
        identity = Identity(
            rows=content["rows"],
            plan=content["plan"],
            repeats=content["num_repeats"],
            servers=content["servers"],
            code=content["code"],
            limits=content.get("limits", {}),
            seen=content.get("input", {}),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise StoreError(
            f"this does not say which run it is: {error!r}", where=str(path), fix="start over without resuming"
        ) from error
    return identity, content


def same_rows(before: Identity, seen: Mapping[str, Any], plan: Mapping[str, Any]) -> bool:
    """Whether the input file was not touched since, so that it need not be hashed."""
    return bool(seen) and dict(before.seen) == dict(seen) and before.plan.get("limit") == plan.get("limit")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*before, *after}):
        old, new = before.get(name, _ABSENT), after.get(name, _ABSENT)
        if _text(old) != _text(new):
            yield f"{name}: {_text(old)} -> {_text(new)}"


def _text(value: Any) -> str:
    text = value if value == _ABSENT else json.dumps(value, default=str, sort_keys=True, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 10]}… ({_short_hash(text)})"


def _short_hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _leaves(node: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            if not str(key).endswith(_ADDRESS_ENDING):
                yield from _leaves(value, f"{name}.{key}")
    else:
        yield name, node


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        needed = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return found
    found_in = (match for text in needed if (match := _REQUIREMENT.match(text)))
    names = {match["name"] for match in found_in if match["extra"] in _EXTRAS_THAT_COUNT} - _PACKAGES_THAT_DO_NOT
    for name in [DISTRIBUTION, *names]:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # an extra that is not installed
    return found


def _hash_of_sources(folder: Path) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS and not name.startswith("."))
        for name in sorted(files):
            if name.endswith(".py"):
                path = Path(root, name)
                digest.update(f"{path.relative_to(folder)}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()
