"""Cache the server blocks that passed their check, because the check imports the server, which takes up to a second.

An entry is a digest of the block and of the size and modification time of every source file of the server folder and of
NeMo Gym. After any change of code or configuration the check runs again.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

PACKAGE = Path(__file__).resolve().parents[1]
MAX_ENTRIES = 512


def block_digest(folder: Path, entrypoint: str, block: Mapping[str, Any]) -> str:
    """Return the digest of a block and of the source files that its check depends on."""
    sources = sorted({*_source_stamps(folder), *_source_stamps(PACKAGE)})
    content = orjson.dumps([str(folder), entrypoint, block, sources], option=orjson.OPT_SORT_KEYS, default=repr)
    return hashlib.sha256(content).hexdigest()


def has_passed(digest: str) -> bool:
    return digest in _read_entries()


def record_passed(digest: str) -> None:
    """Add an entry and drop the oldest ones beyond MAX_ENTRIES; ignore a cache that cannot be written."""
    path = _cache_path()
    entries = [entry for entry in _read_entries() if entry != digest]
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        temporary.write_bytes(orjson.dumps([*entries, digest][-MAX_ENTRIES:]))
        temporary.replace(path)


def _read_entries() -> list[str]:
    try:
        entries = orjson.loads(_cache_path().read_bytes())
    except (OSError, ValueError):
        return []
    return entries if isinstance(entries, list) else []


def _cache_path() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nemo-gym" / "checked-blocks.json"


def _source_stamps(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Yield path, modification time and size of every Python file below a folder."""
    for directory, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(directory, name)  # noqa: PTH118 - four times as fast for hundreds of files
                status = os.stat(path)  # noqa: PTH116
                yield path, status.st_mtime_ns, status.st_size
