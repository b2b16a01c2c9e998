"""Merge, copy, search and walk configuration trees of plain dicts and lists.

Merging follows OmegaConf: mappings merge deeply, lists are replaced as a whole, `???` never replaces a value.
"""

import copy
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

from nemo_gym.config.problems import KeyPath

Tree: TypeAlias = dict[Any, Any]

ABSENT: Any = object()
"""Marks a missing value where None is a possible value."""
MISSING = "???"
POINTER = re.compile(r"\$\{([A-Za-z_][\w\-]*(?:\.[\w\-]+)*)\}")
"""A reference to another value of the tree: `${a.b}`."""


def merge(base: Tree, overriding: Tree) -> Tree:
    """Return a new tree: `overriding` merged over `base`. The result shares no objects with either."""
    result: Tree = copy_tree(base)
    merge_into(result, overriding, root=result)
    return result


def merge_into(target: Tree, overriding: Tree, *, root: Tree) -> None:
    """Merge `overriding` into `target`. A `${a.b}` that is merged with a block is looked up in `root`."""
    for key, value in overriding.items():
        if isinstance(value, dict):
            existing = target.get(key)
            block = pointer_target(existing, root)
            existing = existing if block is ABSENT else copy_tree(block)  # extend a copy of the referenced block
            if isinstance(existing, dict):
                target[key] = existing
                merge_into(existing, value, root=root)
                continue
        elif value == MISSING and isinstance(value, str) and key in target:
            continue
        target[key] = copy_tree(value)


def pointer_target(value: Any, root: Tree) -> Any:
    """Return the value in `root` that `value` refers to, if it is just `${a.b}`; else ABSENT."""
    pointer = POINTER.fullmatch(value) if isinstance(value, str) and "${" in value else None
    return ABSENT if pointer is None else lookup(root, tuple(pointer[1].split(".")), default=ABSENT)


def has_interpolation(value: Any) -> bool:
    """Return whether any text in `value` contains `${`."""
    if isinstance(value, dict):
        return any(has_interpolation(item) for item in value.values())
    if isinstance(value, list):
        return any(has_interpolation(item) for item in value)
    return isinstance(value, str) and "${" in value


def names_in(value: Any) -> Iterator[str]:
    """Yield every key of a tree that is a text."""
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from names_in(item)
    if isinstance(value, dict):
        yield from (key for key in value if isinstance(key, str))


def copy_tree(value: Any) -> Any:
    """Copy plain data deeply; faster than `copy.deepcopy`."""
    if isinstance(value, dict):
        return {key: copy_tree(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copy_tree(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else copy.copy(value)


def lookup(tree: Any, path: KeyPath, *, default: Any = None) -> Any:
    """Return the value at `path`, or `default`."""
    for part in path:
        tree = child_value(tree, part)
        if tree is ABSENT:
            return default
    return tree


def child_value(tree: Any, part: str | int) -> Any:
    """Return the value of a key or list index, or ABSENT. The text `1` also matches the key that YAML parsed as 1."""
    if isinstance(tree, dict):
        if part in tree:
            return tree[part]
        return next((value for key, value in tree.items() if str(key) == str(part)), ABSENT)
    if isinstance(tree, list) and str(part).isdecimal() and int(part) < len(tree):
        return tree[int(part)]
    return ABSENT


def iter_leaves(tree: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield every value that is neither a mapping nor a list, with its path."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from iter_leaves(value, (*path, str(key)))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from iter_leaves(value, (*path, index))
    else:
        yield path, tree


def missing_values(tree: Any) -> list[KeyPath]:
    """Return the path of every value that is still `???`."""
    return [path for path, value in iter_leaves(tree) if isinstance(value, str) and value == MISSING]


def count_values(tree: Any) -> int:
    """Return the number of values in a tree, including mappings and lists."""
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return 1 + sum(count_values(value) for value in children)
