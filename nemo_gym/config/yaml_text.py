"""Parse YAML text into plain data, with the scalar types of OmegaConf.

Deep nesting, aliases that multiply the data, duplicate keys and custom tags are errors.
"""

import re
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml
from yaml.constructor import ConstructorError, SafeConstructor

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

_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BASE):  # type: ignore[misc]
    """PyYAML's loader with the implicit scalar types of OmegaConf: its floats, and no timestamps."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in entries if tag not in (f"{_TAG}float", f"{_TAG}timestamp")]
        for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


for _first in "-+0123456789.":
    _Loader.yaml_implicit_resolvers.setdefault(_first, []).insert(0, (f"{_TAG}float", _FLOAT))

_SCALARS = SafeConstructor()


class _YamlProblem(Exception):
    def __init__(self, what: str, mark: Any, fix: str | None = None) -> None:
        super().__init__(what)
        self.what, self.mark, self.fix = what, mark, fix


@dataclass
class _Builder:
    """Builds plain data from PyYAML's nodes; `name` is the file, `marks` receives positions if it is not None."""

    name: str
    marks: Marks | None
    warnings: list[str] = field(default_factory=list)
    nodes: int = 0
    """Number of nodes built so far. A node is built again for each of its aliases."""

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        """Return the value of a node, whose key path is `path`."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise _YamlProblem(f"more than {MAX_NODES:,} values, including those repeated by aliases", node.start_mark)
        if len(path) > MAX_DEPTH:  # an alias may be inside its own anchor
            raise _YamlProblem(f"aliases nest values more than {MAX_DEPTH} levels deep", node.start_mark)
        if isinstance(node, yaml.MappingNode):
            self.check_tag(node, {"map"})
            return self.build_mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            self.check_tag(node, {"seq"})
            return [self.build_at(item, (*path, index), item) for index, item in enumerate(node.value)]
        return self.build_scalar(node)

    def build_at(self, node: yaml.Node, path: KeyPath, marked: yaml.Node) -> Any:
        """Return the value of a node, and record the position of the node `marked` as that of `path`."""
        if self.marks is not None:
            self.marks.setdefault(path, (marked.start_mark.line + 1, marked.start_mark.column + 1))
        return self.build(node, path)

    def build_mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[Any, Any]:
        """Return the value of a mapping; a key may be given twice only with the same text, number, boolean or null."""
        mapping: dict[Any, Any] = {}
        merged: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                value = self.build(value_node, (*path, "<<"))
                for source in value if isinstance(value, list) else [value]:
                    if not isinstance(source, dict):
                        raise _YamlProblem("'<<' merges mappings only", value_node.start_mark)
                    merged = {**source, **merged}  # earlier sources of `<<` have priority
                continue
            key = self.build_scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if key is None:
                what = "a key must be plain text, not a list, a mapping or nothing"
                raise _YamlProblem(what, key_node.start_mark)
            value = self.build_at(value_node, (*path, str(key)), key_node)
            if key in mapping and (mapping[key] != value or isinstance(value, dict | list)):
                difference = " with different values" if mapping[key] != value else ""
                raise _YamlProblem(f"'{key}' is given twice{difference}", value_node.start_mark, "keep one of them")
            if key in mapping:
                line = value_node.start_mark.line + 1
                self.warnings.append(f"{self.name}:{line}: '{key}' is given twice with the same value")
            mapping[key] = value
        return {**merged, **mapping}

    def build_scalar(self, node: yaml.Node) -> Any:
        """Return the value of a scalar: text, number, boolean or None."""
        self.check_tag(node, _SCALAR_TAGS)
        try:
            value = _SCALARS.construct_object(node)
            str(value)  # a number that has too many digits to be written, such as a long `0xff…`, raises ValueError
            return value
        except (ValueError, KeyError, ConstructorError) as error:
            short = node.value if len(node.value) <= 40 else node.value[:40] + "…"
            what = f"'{short}' is not a valid {node.tag.removeprefix(_TAG)}"
            raise _YamlProblem(what, node.start_mark, "put it in quotes") from error

    def check_tag(self, node: yaml.Node, allowed: set[str]) -> None:
        if node.tag.removeprefix(_TAG) not in allowed:
            raise _YamlProblem(f"tag '{node.tag}' is not allowed here", node.start_mark, "plain YAML values only")


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
        _check_events(text, name)
        node = yaml.compose(text, Loader=_Loader)
        value = None if node is None else builder.build(node, ())
    except _YamlProblem as problem:
        raise ConfigError(problem.what, where=_position(name, problem.mark), fix=problem.fix) from None
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text, name) from None
    except yaml.reader.ReaderError as error:
        location = f"{name}:{text.count(chr(10), 0, error.position) + 1}"
        raise ConfigError(f"character {error.character!r} is not allowed in YAML", where=location) from None
    return YamlText({} if value is None else value, tuple(builder.warnings))


def _check_events(text: str, name: str) -> None:
    """Raise an error for several documents, and for deep nesting, which would exhaust the stack of `yaml.compose`."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise _YamlProblem(f"nested more than {MAX_DEPTH} levels deep", event.start_mark)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.DocumentStartEvent):
            documents += 1
    if documents > 1:
        raise ConfigError("contains several YAML documents", where=name, fix="one document per file, without '---'")


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
