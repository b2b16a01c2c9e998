"""`_inherit_from`, `_copy`, `_delete_key`, and the same as text: `${inherit_from:a.b}`, `${copy:a.b}`.

A block that inherits becomes its source with its own keys laid over it; the source leaves its place (a copied one
stays). Sources are read as they were written, with their own directives carried out first, so the order of blocks
does not matter and a source may serve many.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from nemo_gym.config.merge import MISSING, POINTER, Tree, child, copied, count, leaves, lookup, merge_into
from nemo_gym.config.problems import Path, Problem, dotted, nearest
from nemo_gym.config.yaml_text import MAX_NODES
from nemo_gym.errors import InheritPathNotFoundError

INHERIT = "_inherit_from"
COPY = "_copy"
DELETE = "_delete_key"
MAX_CHAIN = 50
_AS_TEXT = re.compile(r"\$\{(?P<word>inherit_from|copy):\s*(?P<path>[^}]+?)\s*\}")
_ABSENT: Any = object()


@dataclass
class Expanded:
    """The tree after all directives, what was moved where (for finding positions), and what went wrong."""

    tree: Tree
    moves: list[tuple[Path, Path]] = field(default_factory=list)
    """(new place, old place)."""
    problems: list[Problem] = field(default_factory=list)


def expand_directives(tree: Tree) -> Expanded:
    """Carry out every directive in `tree`, which is not changed."""
    if not _has_directive(tree):
        return Expanded(tree)
    return _Expansion(tree).run()


def _has_directive(node: Any) -> bool:
    if isinstance(node, dict):
        return not {INHERIT, COPY, DELETE}.isdisjoint(node) or any(_has_directive(value) for value in node.values())
    if isinstance(node, list):
        return any(_has_directive(value) for value in node)
    return isinstance(node, str) and "${" in node and _AS_TEXT.search(node) is not None


class _Expansion:
    def __init__(self, pristine: Tree) -> None:
        self.pristine = pristine
        self.done: dict[Path, Any] = {}
        self.under_way: list[Path] = []
        self.taken: list[Path] = []
        self.moves: list[tuple[Path, Path]] = []
        self.problems: list[Problem] = []
        self.copied_nodes = 0
        self.circles: set[frozenset[Path]] = set()

    def run(self) -> Expanded:
        tree = self.block(self.pristine, ())
        for path in self.taken:
            parent = lookup(tree, path[:-1], default=None) if len(path) > 1 else tree
            if isinstance(parent, dict):
                parent.pop(path[-1], None)
        return Expanded(tree if isinstance(tree, dict) else {}, self.moves, self.problems)

    def block(self, node: Any, path: Path) -> Any:
        """`node` with the directives in it carried out, children first."""
        if isinstance(node, list):
            return [self.block(item, (*path, index)) for index, item in enumerate(node)]
        if isinstance(node, str):
            reference = _AS_TEXT.fullmatch(node) if "${" in node else None
            if reference is None:
                return node
            wanted, keep = reference["path"], reference["word"] == "copy"
            return self.guarded(path, lambda: self.brought(path, wanted, keep, {}, []))
        if not isinstance(node, dict):
            return node
        if {INHERIT, COPY, DELETE}.isdisjoint(node):
            return {key: self.block(value, (*path, str(key))) for key, value in node.items()}
        return self.guarded(path, lambda: self.directed(node, path))

    def guarded(self, path: Path, expand: Any) -> Any:
        """Expand the block at `path` once; a block that needs itself is a mistake."""
        if path in self.done:
            return copied(self.done[path])
        if path in self.under_way:
            circle = [*self.under_way[self.under_way.index(path) :], path]
            shown = " → ".join(dotted(step) or "(top)" for step in circle)
            problem = Problem(f"inheritance goes in a circle: {shown}", path, "let one of these blocks stand alone")
            raise _Stop(problem, frozenset(circle))
        if len(self.under_way) >= MAX_CHAIN:
            raise _Stop(Problem(f"inheritance is more than {MAX_CHAIN} steps long", path), frozenset([path]))
        self.under_way.append(path)
        try:
            result = expand()
        except _Stop as stop:
            if len(self.under_way) > 1:
                raise
            if stop.circle not in self.circles:  # each member of a circle finds it again
                self.problems.append(stop.problem)
                self.circles.add(stop.circle)
            result = {}
        finally:
            self.under_way.pop()
        self.done[path] = result
        return copied(result)

    def directed(self, node: Tree, path: Path) -> Any:
        own = {
            key: self.block(value, (*path, str(key)))
            for key, value in node.items()
            if key not in (INHERIT, COPY, DELETE)
        }
        doomed = self.doomed(node.get(DELETE), path)
        kept_for_later = [key for key in doomed if own.pop(key, _ABSENT) is _ABSENT]
        for word in (INHERIT, COPY):
            if word in node:
                return self.brought(path, node[word], word == COPY, own, kept_for_later)
        for key in kept_for_later:
            self.problems.append(Problem(f"{DELETE}: there is no '{key}' to delete", path))
        return own

    def brought(self, path: Path, wanted: Any, keep: bool, own: Tree, doomed: list[str]) -> Any:
        """The source's value with `own` laid over it."""
        word = COPY if keep else INHERIT
        if not isinstance(wanted, str) or not wanted.strip():
            self.problems.append(Problem(f"{word} needs a dotted path, not {wanted!r}", (*path, word)))
            return own
        source_path: Path = tuple(self.named(wanted.strip()).split("."))
        source = self.find(source_path)
        if source is _ABSENT:
            self.problems.append(self.missing(path, word, source_path))
            return own
        if not keep and source_path != path:
            self.taken.append(source_path)
        self.moves.append((path, source_path))
        if source == MISSING:
            return MISSING
        return self.laid_over(source, own, doomed, path)

    def laid_over(self, source: Any, own: Tree, doomed: list[str], path: Path) -> Any:
        self.copied_nodes += count(source)
        if self.copied_nodes > MAX_NODES:
            raise _Stop(Problem(f"inheriting makes more than {MAX_NODES:,} values", path), frozenset())
        if not isinstance(source, dict):
            if own:
                self.problems.append(Problem("only a mapping can be inherited and extended", path))
            return source
        merged = copied(source)
        merge_into(merged, own, root=self.pristine)
        for key in doomed:
            if merged.pop(key, _ABSENT) is _ABSENT:
                self.problems.append(Problem(f"{DELETE}: there is no '{key}' to delete", path))
        return merged

    def doomed(self, value: Any, path: Path) -> list[str]:
        if value is None:
            return []
        keys = value.split(",") if isinstance(value, str) else value
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            self.problems.append(Problem(f"{DELETE} needs names separated by commas", (*path, DELETE)))
            return []
        return [key.strip() for key in keys if key.strip()]

    def named(self, wanted: str) -> str:
        """A path may itself be given by a `${pointer}`."""
        pointer = POINTER.fullmatch(wanted)
        target = lookup(self.pristine, tuple(pointer[1].split("."))) if pointer else None
        return target if isinstance(target, str) else wanted

    def find(self, path: Path) -> Any:
        """The value at `path`, seen through the directives of the blocks on the way."""
        node: Any = self.pristine
        for depth, part in enumerate(path):
            step = child(node, part, default=_ABSENT)
            if step is _ABSENT and isinstance(node, dict) and not {INHERIT, COPY}.isdisjoint(node) and depth:
                node = self.block(node, path[:depth])
                step = child(node, part, default=_ABSENT)
            if step == MISSING or step is _ABSENT:
                return step
            node = self.pointed(step)
        return self.block(node, path)

    def pointed(self, node: Any) -> Any:
        pointer = POINTER.fullmatch(node) if isinstance(node, str) and "${" in node else None
        target = lookup(self.pristine, tuple(pointer[1].split(".")), default=_ABSENT) if pointer else _ABSENT
        return target if isinstance(target, dict) else node

    def missing(self, path: Path, word: str, source: Path) -> Problem:
        known = [".".join(map(str, found)) for found in _blocks(self.pristine)]
        close = nearest(".".join(map(str, source)), known, n=3)
        hint = f" — did you mean {' or '.join(repr(name) for name in close)}?" if close else ""
        what = f"{word} names '{dotted(source)}', which does not exist{hint}"
        fix = "load the config that defines it before this one, or correct the path"
        return Problem(what, (*path, word), fix, kind=InheritPathNotFoundError)


class _Stop(Exception):
    """Nothing sensible can be built here."""

    def __init__(self, problem: Problem, circle: frozenset[Path]) -> None:
        super().__init__(problem.what)
        self.problem = problem
        self.circle = circle


def _blocks(tree: Any, path: Path = ()) -> list[Path]:
    if not isinstance(tree, dict) or len(path) > 3:
        return []
    found: list[Path] = []
    for key, value in tree.items():
        if isinstance(value, dict):
            found += [(*path, str(key)), *_blocks(value, (*path, str(key)))]
    return found


def missing_values(tree: Any) -> list[Path]:
    """The way to every `???` that nobody has filled in."""
    return [path for path, value in leaves(tree) if isinstance(value, str) and value == MISSING]
