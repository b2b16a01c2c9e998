"""Parse YAML text into plain data, with the scalar types of OmegaConf.

Data is built from the parser's events in one loop, which detects deep nesting, aliases that multiply the data,
duplicate keys and custom tags. It does not recurse, so no text can exhaust the stack.
"""

import re
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml
from yaml.constructor import ConstructorError, SafeConstructor
from yaml.nodes import ScalarNode

from nemo_gym.config.problems import KeyPath
from nemo_gym.errors import ConfigError

MAX_BYTES = 2 * 1024 * 1024
MAX_DEPTH = 64
MAX_NODES = 200_000

Marks: TypeAlias = dict[KeyPath, tuple[int, int]]
"""Line and column (from 1) of each key's text and of each list element."""

_TAG = "tag:yaml.org,2002:"
_SCALAR_TAGS = {"null", "bool", "int", "float", "str"}
_FLOAT = re.compile(
    r"""^(?:[-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+)
    |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?::[0-5]?[0-9])+\.[0-9_]*
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
"""OmegaConf's pattern of a float; unlike YAML 1.1 it includes `1e-9`."""


class _Scalars(SafeConstructor):
    """PyYAML's scalar constructors without a document around them."""


_SCALARS = _Scalars()
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """Return the (tag, pattern) pairs of implicit scalar types, by the first character of the text."""
    resolvers = {
        first: [(tag, pattern) for tag, pattern in entries if tag.removeprefix(_TAG) in _SCALAR_TAGS - {"float"}]
        for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for first in "-+0123456789.":
        resolvers.setdefault(first, []).insert(0, (f"{_TAG}float", _FLOAT))
    return resolvers


_RESOLVERS = _resolvers()


@dataclass
class _OpenNode:
    """A mapping or sequence whose end event has not been read."""

    value: Any
    key: Any = None
    has_key: bool = False
    is_merge: bool = False
    anchor: str | None = None
    merges: list[Any] = field(default_factory=list)
    nodes: int = 1


class _YamlProblem(Exception):
    def __init__(self, what: str, mark: Any, fix: str | None = None) -> None:
        super().__init__(what)
        self.what, self.mark, self.fix = what, mark, fix


class _Builder:
    """Builds data from parser events. `path` is the path of the value that is being built."""

    def __init__(self, name: str, marks: Marks | None) -> None:
        self.name = name
        self.marks = marks
        self.repeated: list[str] = []
        self.stack: list[_OpenNode] = []
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.documents: list[Any] = []
        self.path: list[str | int] = []
        self.scalars: dict[str, Any] = {}

    def feed(self, event: yaml.Event) -> None:
        """Process the next event of the parser."""
        if isinstance(event, yaml.ScalarEvent):
            self.add(self.scalar(event), event, event.anchor)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self.open(event)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self.close(event)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise _YamlProblem(f"alias '*{event.anchor}' has no anchor before it", event.start_mark)
            value, nodes = self.anchors[event.anchor]
            self.add(value, event, None, nodes=nodes)

    def open(self, event: Any) -> None:
        """Begin a mapping or sequence."""
        mapping = isinstance(event, yaml.MappingStartEvent)
        if event.tag not in (None, "!", f"{_TAG}map" if mapping else f"{_TAG}seq"):
            raise _YamlProblem(f"tag '{event.tag}' is not allowed here", event.start_mark, "plain YAML values only")
        if len(self.stack) >= MAX_DEPTH:
            raise _YamlProblem(f"nested more than {MAX_DEPTH} levels deep", event.start_mark)
        if self.stack:
            self.append_step(event)
        self.stack.append(_OpenNode({} if mapping else [], anchor=event.anchor))

    def append_step(self, event: Any) -> None:
        """Append the key or index of the value that begins with `event` to `path`."""
        top = self.stack[-1]
        if isinstance(top.value, dict):
            if not top.has_key:
                raise _YamlProblem("a key must be plain text, not a list or a mapping", event.start_mark)
            self.path.append(str(top.key))
        else:
            self.path.append(len(top.value))
            self.mark(event)

    def mark(self, event: Any) -> None:
        if self.marks is not None:
            self.marks.setdefault(tuple(self.path), (event.start_mark.line + 1, event.start_mark.column + 1))

    def close(self, event: Any) -> None:
        """End a mapping or sequence and put it into its parent."""
        node = self.stack.pop()
        for merged in node.merges:  # earlier sources of `<<` have priority
            node.value = {**merged, **node.value}
        if node.anchor:
            self.anchors[node.anchor] = (node.value, node.nodes)
        if not self.stack:
            self.documents.append(node.value)
            return
        self.path.pop()
        self.put(node.value, event, node.nodes)

    def add(self, value: Any, event: Any, anchor: str | None, nodes: int = 1) -> None:
        """Add a scalar or the value of an alias, as a key or as a value."""
        if anchor:
            self.anchors[anchor] = (value, 1)
        if not self.stack:
            self.documents.append(value)
            return
        top = self.stack[-1]
        if isinstance(top.value, dict) and not top.has_key:
            self.set_key(top, value, event)
            return
        if not isinstance(top.value, dict):
            self.path.append(len(top.value))
            self.mark(event)
            self.path.pop()
        self.put(value, event, nodes)

    def set_key(self, top: _OpenNode, key: Any, event: Any) -> None:
        """Set the key of the next value of a mapping."""
        if isinstance(key, list | dict) or key is None:
            raise _YamlProblem("a key must be plain text, not a list, a mapping or nothing", event.start_mark)
        top.key, top.has_key = key, True
        top.is_merge = key == "<<" and getattr(event, "implicit", (False,))[0]
        self.path.append(str(key))
        self.mark(event)
        self.path.pop()

    def put(self, value: Any, event: Any, nodes: int) -> None:
        """Put a complete value into the innermost open mapping or sequence."""
        top = self.stack[-1]
        top.nodes += nodes
        if top.nodes > MAX_NODES:
            raise _YamlProblem(f"more than {MAX_NODES:,} values, including those repeated by aliases", event.start_mark)
        if isinstance(top.value, list):
            top.value.append(value)
            return
        key, top.has_key = top.key, False
        if top.is_merge:
            top.merges.extend(self.merge_sources(value, event))
        elif key not in top.value:
            top.value[key] = value
        elif top.value[key] == value and not isinstance(value, dict | list):
            self.repeated.append(f"{self.name}:{event.start_mark.line + 1}: '{key}' is given twice with the same value")
        else:
            raise _YamlProblem(f"'{key}' is given twice with different values", event.start_mark, "keep one of them")

    def merge_sources(self, value: Any, event: Any) -> list[dict[Any, Any]]:
        sources = value if isinstance(value, list) else [value]
        if not all(isinstance(source, dict) for source in sources):
            raise _YamlProblem("'<<' merges mappings only", event.start_mark)
        return sources

    def scalar(self, event: yaml.ScalarEvent) -> Any:
        """Return the value of a scalar: text, number, boolean or None."""
        tag, text = event.tag, event.value
        if tag in (None, "!"):
            if tag == "!" or not event.implicit[0]:
                return text
            if text not in self.scalars:
                self.scalars[text] = self.construct(self.implicit_tag(text), event)
            return self.scalars[text]
        if tag.removeprefix(_TAG) not in _SCALAR_TAGS:
            raise _YamlProblem(f"tag '{tag}' is not allowed here", event.start_mark, "plain YAML values only")
        return self.construct(tag, event)

    @staticmethod
    def implicit_tag(text: str) -> str:
        """Return the tag of a plain scalar without an explicit tag."""
        for tag, pattern in _RESOLVERS.get(text[:1], ()):
            if pattern.match(text):
                return tag
        return f"{_TAG}str"

    @staticmethod
    def construct(tag: str, event: yaml.ScalarEvent) -> Any:
        """Convert the text of a scalar to the type of its tag."""
        kind = tag.removeprefix(_TAG)
        if kind == "str":
            return event.value
        node = ScalarNode(tag, event.value)
        try:
            return getattr(_SCALARS, f"construct_yaml_{kind}")(node)
        except (ValueError, KeyError, ConstructorError) as error:
            short = event.value if len(event.value) <= 40 else event.value[:40] + "…"
            raise _YamlProblem(f"'{short}' is not a valid {kind}", event.start_mark, "put it in quotes") from error


@dataclass(frozen=True)
class YamlText:
    """A parsed document and its warnings."""

    value: Any
    warnings: tuple[str, ...] = ()


def read_yaml(text: str, name: str, *, marks: Marks | None = None) -> YamlText:
    """Parse the one document in `text`; an empty text is an empty mapping. Positions are added to `marks`, if given.

    Raises:
        ConfigError: the text is invalid; the message has `name`, line and column.
    """
    builder = _Builder(name, marks)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.feed(event)
    except _YamlProblem as problem:
        raise ConfigError(problem.what, where=_position(name, problem.mark), fix=problem.fix) from None
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text, name) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        location = f"{name}:{line}"
        raise ConfigError(f"character {error.character!r} is not allowed in YAML", where=location) from None
    if len(builder.documents) > 1:
        raise ConfigError("contains several YAML documents", where=name, fix="one document per file, without '---'")
    value = builder.documents[0] if builder.documents else {}
    return YamlText({} if value is None else value, tuple(builder.repeated))


def _position(name: str, mark: Any) -> str:
    return f"{name}:{mark.line + 1}:{mark.column + 1}" if mark is not None else name


def _syntax_error(error: yaml.MarkedYAMLError, text: str, name: str) -> ConfigError:
    """Build the error for invalid YAML, with its position."""
    lines = text.splitlines()
    mark = error.problem_mark or error.context_mark
    if mark is not None and mark.line >= len(lines) and error.context_mark is not None:
        mark = error.context_mark  # a bracket or quote is not closed: report the position where it opens
    line = lines[mark.line] if mark is not None and mark.line < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())] or "'\\t'" in str(error.problem):
        return ConfigError("a tab is used for indentation", where=_position(name, mark), fix="indent with spaces")
    what = ", ".join(part for part in (error.context, error.problem) if part)
    return ConfigError(
        f"not valid YAML: {what}", where=_position(name, mark), fix="check quotes, colons and indentation"
    )
