"""The directives `_inherit_from`, `_copy` and `_delete_key`, and their text forms `${inherit_from:a.b}`, `${copy:a.b}`.

`_inherit_from` merges the block over the source block and deletes the source; `_copy` keeps the source. Directives
inside a source are expanded first, and sources are deleted last. Therefore the order of blocks does not matter, and
several blocks may share a source.
"""

import re
from typing import Any

from nemo_gym.config.problems import ConfigProblem, KeyPath, dotted_path, nearest_names
from nemo_gym.config.trees import (
    ABSENT,
    MISSING,
    Tree,
    child_value,
    copy_tree,
    count_values,
    lookup,
    merge_into,
    pointer_target,
)
from nemo_gym.config.yaml_text import MAX_NODES
from nemo_gym.errors import InheritPathNotFoundError

INHERIT = "_inherit_from"
COPY = "_copy"
DELETE = "_delete_key"
MAX_CHAIN = 50
_TEXT_FORM = re.compile(r"\$\{(?P<word>inherit_from|copy):\s*(?P<path>[^}]+?)\s*\}")


class Expansion:
    """The tree with all directives expanded, the moves of blocks, and the problems. `original` is not modified."""

    def __init__(self, original: Tree) -> None:
        self.moves: list[tuple[KeyPath, KeyPath]] = []
        """(new path, old path) of every inherited or copied block."""
        self.problems: list[ConfigProblem] = []
        self.original = original
        self.expanded: dict[KeyPath, Any] = {}
        self.stack: list[KeyPath] = []  # the paths of the blocks that are being expanded
        self.sources_to_delete: list[KeyPath] = []
        self.copied_values = 0
        self.reported: set[frozenset[KeyPath]] = set()  # the `blocks` of the errors in `problems`
        tree = self.expand(original, ())
        for path in self.sources_to_delete:
            parent = lookup(tree, path[:-1])
            if isinstance(parent, dict):
                parent.pop(path[-1], None)
        self.tree: Tree = tree if isinstance(tree, dict) else {}

    def expand(self, node: Any, path: KeyPath) -> Any:
        """Return `node` with its directives expanded, children first."""
        if isinstance(node, list):
            return [self.expand(item, (*path, index)) for index, item in enumerate(node)]
        if isinstance(node, str) and (reference := _TEXT_FORM.fullmatch(node)):
            node = {COPY if reference["word"] == "copy" else INHERIT: reference["path"]}
        if not isinstance(node, dict):
            return node
        if {INHERIT, COPY, DELETE}.isdisjoint(node):
            return {key: self.expand(value, (*path, str(key))) for key, value in node.items()}
        return self.expand_once(node, path)

    def expand_once(self, node: Tree, path: KeyPath) -> Any:
        """Return a copy of the expanded block at `path`, which is expanded on the first call; a cycle is an error."""
        if path in self.expanded:
            return copy_tree(self.expanded[path])
        if path in self.stack:
            cycle = [*self.stack[self.stack.index(path) :], path]
            steps = " → ".join(dotted_path(step) or "(top)" for step in cycle)
            fix = "remove the directive from one of these blocks"
            raise _ExpansionError(ConfigProblem(f"cyclic inheritance: {steps}", path, fix), frozenset(cycle))
        if len(self.stack) >= MAX_CHAIN:
            problem = ConfigProblem(f"inheritance is more than {MAX_CHAIN} steps long", path)
            raise _ExpansionError(problem, frozenset([path]))
        self.stack.append(path)
        try:
            result = self.expand_block(node, path)
        except _ExpansionError as error:
            if len(self.stack) > 1:  # the outermost block reports the error
                raise
            if error.blocks not in self.reported:  # each block of a cycle raises the same error
                self.problems.append(error.problem)
                self.reported.add(error.blocks)
            result = {}
        finally:
            self.stack.pop()
        self.expanded[path] = result
        return copy_tree(result)

    def expand_block(self, node: Tree, path: KeyPath) -> Any:
        """Expand a block with directives: inherit or copy its source and delete keys."""
        own = {
            key: self.expand(value, (*path, str(key)))
            for key, value in node.items()
            if key not in (INHERIT, COPY, DELETE)
        }
        keys = self.keys_to_delete(node.get(DELETE), path)
        inherited_keys = [key for key in keys if own.pop(key, ABSENT) is ABSENT]  # deletes the block's own keys
        for directive in (INHERIT, COPY):
            if directive in node:
                return self.inherit(path, directive, node[directive], own, inherited_keys)
        self.problems += [_nothing_to_delete(key, path) for key in inherited_keys]
        return own

    def inherit(self, path: KeyPath, directive: str, source_name: Any, own: Tree, deleted_keys: list[str]) -> Any:
        """Merge `own`, the values of the block at `path`, over a copy of its source; then delete `deleted_keys`."""
        if not isinstance(source_name, str) or not source_name.strip():
            what = f"{directive} needs a dotted path, not {source_name!r}"
            self.problems.append(ConfigProblem(what, (*path, directive)))
            return own
        referenced_name = pointer_target(source_name.strip(), self.original)  # of a `${…}` in place of the name
        dotted_name = referenced_name if isinstance(referenced_name, str) else source_name.strip()
        source_path: KeyPath = tuple(dotted_name.split("."))
        source = self.find(source_path)
        if source is ABSENT:
            self.problems.append(self.unknown_source(path, directive, source_path))
            return own
        if directive == INHERIT and source_path != path:
            self.sources_to_delete.append(source_path)
        self.moves.append((path, source_path))
        if source == MISSING:
            return MISSING
        self.copied_values += count_values(source)
        if self.copied_values > MAX_NODES:
            problem = ConfigProblem(f"inheritance creates more than {MAX_NODES:,} values", path)
            raise _ExpansionError(problem, frozenset())
        if not isinstance(source, dict):
            if own:
                self.problems.append(ConfigProblem("only a mapping can be inherited and extended", path))
            return source
        merge_into(source, own, root=self.original)  # `source` is a copy
        self.problems += [_nothing_to_delete(key, path) for key in deleted_keys if source.pop(key, ABSENT) is ABSENT]
        return source

    def keys_to_delete(self, value: Any, path: KeyPath) -> list[str]:
        """Return the names in a `_delete_key`, whose `value` is a list or a text separated by commas."""
        if value is None:
            return []
        keys = value.split(",") if isinstance(value, str) else value
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            self.problems.append(ConfigProblem(f"{DELETE} needs names separated by commas", (*path, DELETE)))
            return []
        return [key.strip() for key in keys if key.strip()]

    def find(self, path: KeyPath) -> Any:
        """Return the value at `path`, with the directives of the blocks along the path expanded; ABSENT if missing."""
        node: Any = self.original
        for depth, part in enumerate(path):
            child = child_value(node, part)
            is_inheriting = depth > 0 and isinstance(node, dict) and not {INHERIT, COPY}.isdisjoint(node)
            if child is ABSENT and is_inheriting:
                child = child_value(self.expand(node, path[:depth]), part)
            if child == MISSING or child is ABSENT:
                return child
            block = pointer_target(child, self.original)
            node = block if isinstance(block, dict) else child
        return self.expand(node, path)

    def unknown_source(self, path: KeyPath, directive: str, source: KeyPath) -> ConfigProblem:
        """Return the problem of a directive whose source does not exist."""
        names = [".".join(map(str, block)) for block in _block_paths(self.original)]
        close = nearest_names(".".join(map(str, source)), names, n=3)
        hint = f" — did you mean {' or '.join(repr(name) for name in close)}?" if close else ""
        what = f"{directive} names '{dotted_path(source)}', which does not exist{hint}"
        fix = "load the config that defines it before this one, or correct the path"
        return ConfigProblem(what, (*path, directive), fix, kind=InheritPathNotFoundError)


class _ExpansionError(Exception):
    """Some blocks cannot be expanded. Several errors with the same `blocks` are one problem."""

    def __init__(self, problem: ConfigProblem, blocks: frozenset[KeyPath]) -> None:
        super().__init__(problem.what)
        self.problem = problem
        self.blocks = blocks


def _nothing_to_delete(key: str, path: KeyPath) -> ConfigProblem:
    return ConfigProblem(f"{DELETE}: the block has no key '{key}'", path)


def _block_paths(tree: Any, path: KeyPath = ()) -> list[KeyPath]:
    """Return the paths of the blocks in the first four levels."""
    if not isinstance(tree, dict) or len(path) > 3:
        return []
    paths: list[KeyPath] = []
    for key, value in tree.items():
        if isinstance(value, dict):
            paths += [(*path, str(key)), *_block_paths(value, (*path, str(key)))]
    return paths
