"""Detect from a server's source, without running it, whether the server computes metrics."""

import ast
from dataclasses import dataclass
from pathlib import Path

HOOKS = frozenset({"compute_metrics", "get_key_metrics"})
ENDPOINT = "aggregate_metrics"
PATH = "/aggregate_metrics"
STANDARD_BASES = frozenset(
    {
        "BaseModel",
        "BaseResourcesServer",
        "BaseResponsesAPIAgent",
        "SimpleResourcesServer",
        "SimpleResponsesAPIAgent",
    }
)
"""Server classes that compute only the standard metrics."""


@dataclass(frozen=True)
class MetricHooks:
    """The metric hooks of a server."""

    own: bool
    """The server computes metrics in addition to the standard ones."""
    passes_on: bool = False
    """The server forwards the request for metrics to another server."""


def metric_hooks(source: Path) -> MetricHooks:
    """Return the metric hooks of the server classes in `source`.

    A class with a parent from another file may inherit hooks, and a file that cannot be read may contain hooks: both
    count as `own`, so that no metrics are missing.
    """
    try:
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return MetricHooks(own=True)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    servers = _server_classes(classes)
    own = passes_on = False
    for cls in servers:
        for function in cls.body:
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if function.name == ENDPOINT and _mentions_path(function):
                passes_on = True
            elif function.name in HOOKS or function.name == ENDPOINT:
                own = True
    may_inherit = any(base not in STANDARD_BASES for cls in servers for base in _imported_bases(cls, classes))
    return MetricHooks(own=own or may_inherit or not servers, passes_on=passes_on)


def _server_classes(classes: list[ast.ClassDef]) -> list[ast.ClassDef]:
    """Return the server classes: their parent is named `…Server` or `…Agent`, or is a server class of the same file."""
    servers: list[ast.ClassDef] = []
    names: set[str] = set()
    for cls in classes:
        bases = {_name(base) for base in cls.bases}
        if bases & names or any(base.endswith(("Server", "Agent")) for base in bases):
            servers.append(cls)
            names.add(cls.name)
    return servers


def _imported_bases(cls: ast.ClassDef, classes: list[ast.ClassDef]) -> set[str]:
    """Return the names of the parents of a class that are not defined in the same file."""
    local_names = {other.name for other in classes}
    return {_name(base) for base in cls.bases} - local_names


def _name(base: ast.expr) -> str:
    if isinstance(base, ast.Subscript):
        return _name(base.value)
    return base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""


def _mentions_path(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(node, ast.Constant) and node.value == PATH for node in ast.walk(function))
