"""Check server blocks against the config classes of their servers, and cache the digests of the blocks that passed.

The check imports the server, which takes up to a second. A digest covers the block and the size and modification time
of every source file of the server folder and of NeMo Gym, so that the check runs again after any change.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.config.checks import check_server_block
from nemo_gym.config.instances import is_placeholder
from nemo_gym.config.omegaconf_adapter import as_dict
from nemo_gym.config.problems import ConfigProblem, raise_all
from nemo_gym.config.resolve import ResolvedConfig
from nemo_gym.config.search_roots import _augment_sys_path, extra_roots
from nemo_gym.launch.hosted_instances import find_instances

PACKAGE = Path(__file__).resolve().parents[1]
MAX_ENTRIES = 512


def check_server_blocks(
    resolved: ResolvedConfig, roots: Sequence[Path], *, unchecked: list[str] | None = None
) -> list[str]:
    """Check the blocks of servers hosted in cells against their config classes; return warnings.

    Servers with another hosting are not imported here, because importing them may have side effects; they check their
    blocks when they start. With `unchecked`, server folders of the working directory are not imported either; the
    names of their instances are added to that list.

    Raises:
        ConfigError: blocks are not valid, with every problem and its location.
    """
    config = as_dict(resolved.config)
    blocks = {name: block for name, block in config.items() if not is_placeholder(block)}
    valid = {instance.name for instance in resolved.instances.valid}
    problems: list[ConfigProblem] = []
    for instance in find_instances(blocks, roots):
        if instance.hosting != "cell" or instance.name not in valid:
            continue
        if unchecked is not None and _is_in_working_directory(instance.folder):
            unchecked.append(instance.name)
            continue
        block = blocks[instance.name][instance.kind][instance.implementation]
        digest = block_digest(instance.folder, instance.entrypoint, block)
        if has_passed(digest):
            continue
        from nemo_gym.launch.cell import load_server_class  # slow to import

        annotation = load_server_class(instance).model_fields["config"].annotation
        if not isinstance(annotation, type):  # such as a union: the server checks its block when it starts
            continue
        block_problems = check_server_block((instance.name, instance.kind, instance.implementation), block, annotation)
        problems += block_problems
        if not block_problems:
            record_passed(digest)
    _augment_sys_path(with_working_directory=False)  # importing a server may have added it
    located = resolved.locations.locate(problems)
    raise_all(located)
    return [str(problem) for problem in located]


def _is_in_working_directory(folder: Path) -> bool:
    """Return True if a folder is below the working directory, and not in NeMo Gym or a configured search root."""
    trusted = [PACKAGE.parent, *(root.resolve() for root in extra_roots())]
    return folder.is_relative_to(Path.cwd()) and not any(folder.is_relative_to(root) for root in trusted)


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
