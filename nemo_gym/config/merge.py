"""Merging of plain configuration trees, by OmegaConf's rules: mappings deep, lists as a whole, `???` never wins."""

import copy
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

from nemo_gym.config.problems import Path

Tree: TypeAlias = dict[Any, Any]

MISSING = "???"
POINTER = re.compile(r"\$\{([A-Za-z_][\w\-]*(?:\.[\w\-]+)*)\}")


def merge(below: Tree, above: Tree, *, root: Tree | None = None) -> Tree:
    """A new tree: `above` laid over `below`. Neither is changed, and nothing of them is shared."""
    result: Tree = copied(below)
    merge_into(result, above, root=result if root is None else root)
    return result


def merge_into(target: Tree, above: Tree, *, root: Tree) -> None:
    """Lay `above` over `target`, which changes. `root` is where `${pointers}` to blocks are looked up."""
    for key, value in above.items():
        if isinstance(value, dict):
            present = _pointed_at(target.get(key), root)
            if isinstance(present, dict):
                target[key] = present
                merge_into(present, value, root=root)
                continue
        elif value == MISSING and isinstance(value, str) and key in target:
            continue
        target[key] = copied(value)


def _pointed_at(value: Any, root: Tree) -> Any:
    """A block to be extended: the value itself, or a copy of the block a bare `${a.b}` points at."""
    pointer = POINTER.fullmatch(value) if isinstance(value, str) else None
    if pointer is None:
        return value
    return copied(lookup(root, tuple(pointer[1].split(".")), default=value))


def followed(value: Any, root: Tree) -> Any:
    """A copy of `value` in which every bare `${a.b}` that points to plain data is replaced by that data.

    What most configurations need of interpolation, at a hundredth of the cost; the rest is left to OmegaConf.
    """
    if isinstance(value, dict):
        return {key: followed(item, root) for key, item in value.items()}
    if isinstance(value, list):
        return [followed(item, root) for item in value]
    pointer = POINTER.fullmatch(value) if isinstance(value, str) else None
    if pointer is None:
        return value
    target = lookup(root, tuple(pointer[1].split(".")), default=_ABSENT)
    return value if target is _ABSENT or target == MISSING or mentions(target) else copied(target)


def mentions(value: Any) -> bool:
    """Whether there is a `${` anywhere in it."""
    if isinstance(value, dict):
        return any(mentions(item) for item in value.values())
    if isinstance(value, list):
        return any(mentions(item) for item in value)
    return isinstance(value, str) and "${" in value


def copied(value: Any) -> Any:
    """A deep copy of plain data, without the bookkeeping `copy.deepcopy` needs for everything else."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else copy.copy(value)


def lookup(tree: Any, path: Path, *, default: Any = None) -> Any:
    """The value at `path`, or `default`."""
    for part in path:
        tree = child(tree, part, default=_ABSENT)
        if tree is _ABSENT:
            return default
    return tree


_ABSENT: Any = object()


def child(tree: Any, part: str | int, *, default: Any = None) -> Any:
    """One step down: a key (also one that YAML read as a number or a boolean) or a list index."""
    if isinstance(tree, dict):
        if part in tree:
            return tree[part]
        return next((value for key, value in tree.items() if str(key) == str(part)), default)
    if isinstance(tree, list) and str(part).isdecimal() and int(part) < len(tree):
        return tree[int(part)]
    return default


def leaves(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value that is not a mapping or a list, with the way to it."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, (*path, str(key)))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from leaves(value, (*path, index))
    else:
        yield path, tree


def count(tree: Any) -> int:
    """How many values there are, blocks included."""
    if isinstance(tree, dict):
        return 1 + sum(count(value) for value in tree.values())
    if isinstance(tree, list):
        return 1 + sum(count(value) for value in tree)
    return 1
