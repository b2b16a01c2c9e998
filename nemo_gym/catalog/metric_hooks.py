"""Whether a server has metrics of its own, told by reading its source, not by running it."""

import ast
from dataclasses import dataclass
from pathlib import Path

HOOKS = frozenset({"compute_metrics", "get_key_metrics"})
ENDPOINT = "aggregate_metrics"
PATH = "/aggregate_metrics"
PLAIN_BASES = frozenset(
    {
        "BaseModel",
        "BaseResourcesServer",
        "BaseResponsesAPIAgent",
        "SimpleResourcesServer",
        "SimpleResponsesAPIAgent",
    }
)
"""Server classes whose own metrics are the standard ones."""


@dataclass(frozen=True)
class MetricHooks:
    """What a server does with metrics: computes its own, or passes the question on to another server."""

    own: bool
    passes_on: bool = False


def metric_hooks(source: Path) -> MetricHooks:
    """What the server classes in `source` override.

    A class whose parent is defined elsewhere may have inherited hooks, and a file that cannot be read may have
    anything: both count as having their own, so that nobody's metrics are left out.
    """
    try:
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return MetricHooks(own=True)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    servers = _servers(classes)
    own = passes_on = False
    for cls in servers:
        for function in cls.body:
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if function.name == ENDPOINT and _mentions_path(function):
                passes_on = True
            elif function.name in HOOKS or function.name == ENDPOINT:
                own = True
    inherited = any(base not in PLAIN_BASES for cls in servers for base in _bases(cls, classes))
    return MetricHooks(own=own or inherited or not servers, passes_on=passes_on)


def _servers(classes: list[ast.ClassDef]) -> list[ast.ClassDef]:
    """The classes that are servers: by their parent's name, or by that of a parent in the same file."""
    found: list[ast.ClassDef] = []
    names: set[str] = set()
    for cls in classes:
        bases = {_name(base) for base in cls.bases}
        if bases & names or any(base.endswith(("Server", "Agent")) for base in bases):
            found.append(cls)
            names.add(cls.name)
    return found


def _bases(cls: ast.ClassDef, known: list[ast.ClassDef]) -> set[str]:
    """The parents of a class that are not in the same file."""
    here = {other.name for other in known}
    return {_name(base) for base in cls.bases} - here


def _name(base: ast.expr) -> str:
    if isinstance(base, ast.Subscript):
        return _name(base.value)
    return base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""


def _mentions_path(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(node, ast.Constant) and node.value == PATH for node in ast.walk(function))
