"""Detect from a server's source, without running it, whether the server computes metrics."""

import ast
from dataclasses import dataclass
from pathlib import Path

HOOKS = frozenset({"compute_metrics", "get_key_metrics"})
ENDPOINT = "aggregate_metrics"
PATH = "/aggregate_metrics"
STANDARD_BASES = frozenset(
    {"BaseModel", "BaseResourcesServer", "BaseResponsesAPIAgent", "SimpleResourcesServer", "SimpleResponsesAPIAgent"}
)
"""Server classes that compute only the standard metrics."""
FORWARDING_BASES = frozenset({"EpisodeAgent", "ToolAgent"})
"""Server classes that forward the request for metrics to their resources server."""


@dataclass(frozen=True)
class MetricHooks:
    """The metric hooks of a server."""

    own: bool
    """The server computes metrics in addition to the standard ones."""
    passes_on: bool = False
    """The server forwards the request for metrics to another server."""


def metric_hooks(source: Path) -> MetricHooks:
    """Return the metric hooks of the server classes in `source`.

    A server class has a parent named `…Server` or `…Agent`, or a server class of the same file as its parent. A class
    with a parent from another file may inherit hooks, and a file without a known server class may contain hooks: both
    count as `own`, so that no metrics are missing.
    """
    try:
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return MetricHooks(own=True)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    class_names = {cls.name for cls in classes}
    server_names: set[str] = set()
    own = passes_on = False
    for cls in classes:
        bases = {_base_name(base) for base in cls.bases}
        if not bases & server_names and not any(base.endswith(("Server", "Agent")) for base in bases):
            continue
        server_names.add(cls.name)
        own = own or not bases <= STANDARD_BASES | FORWARDING_BASES | class_names
        passes_on = passes_on or bool(bases & FORWARDING_BASES)
        for function in cls.body:
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if function.name == ENDPOINT and _mentions_path(function):
                passes_on = True
            elif function.name in {*HOOKS, ENDPOINT}:
                own = True
    return MetricHooks(own=own or not server_names, passes_on=passes_on)


def _base_name(base: ast.expr) -> str:
    """Return the name of a parent class without module and type arguments."""
    if isinstance(base, ast.Subscript):
        return _base_name(base.value)
    return base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""


def _mentions_path(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(node, ast.Constant) and node.value == PATH for node in ast.walk(function))
