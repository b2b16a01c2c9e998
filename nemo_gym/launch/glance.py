"""Whether a server's block is surely fine, told from the source of its config class without running any of it.

Importing a server costs most of a second. A block whose every value plainly fits the declared type of its field needs
no import; at the slightest doubt (a validator, a type we do not know, a field we do not find) the answer is no, and the
class itself is asked.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from nemo_gym import PARENT_DIR

PLAIN_TYPES: dict[str, tuple[type, ...]] = {"str": (str,), "bool": (bool,), "int": (int,), "float": (int, float)}
VALIDATORS = frozenset({"field_validator", "model_validator", "validator", "root_validator", "__init__", "__new__"})
REFERENCES = frozenset({"ModelServerRef", "ResourcesServerRef", "AgentServerRef"})
ROOTS_OF_ALL = frozenset({"BaseModel", "MaskedModel", "ABC"})
MARGINAL = frozenset(
    {"entrypoint", "host", "port", "name", "domain", "hosting", "num_workers", "datasets", "verified", "description"}
)
"""Fields of every server's block that are checked when the configuration is."""


@dataclass
class Declared:
    """The fields of a class and of its bases, and whether anything but their types decides what fits."""

    types: dict[str, ast.expr] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    plain: bool = True


def surely_fits(source: Path, block: Mapping[str, Any]) -> bool:
    """Whether every value of the block plainly fits the config class of the server in `source`."""
    try:
        name = _config_class(_parsed(source))
        declared = _declared(source, name) if name else None
    except (OSError, SyntaxError, ValueError, RecursionError):
        return False
    if declared is None or not declared.plain:
        return False
    given = {key: value for key, value in block.items() if key not in MARGINAL}
    return declared.required - MARGINAL <= given.keys() and all(
        key in declared.types and _fits(declared.types[key], value) for key, value in given.items()
    )


@cache
def _parsed(source: Path) -> ast.Module:
    return ast.parse(source.read_bytes())


def _config_class(tree: ast.Module) -> str | None:
    """The class that the server's `config` is declared to be; None unless exactly one is."""
    found = {
        statement.annotation.id
        for cls in tree.body
        if isinstance(cls, ast.ClassDef)
        for statement in cls.body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and statement.target.id == "config"
        and isinstance(statement.annotation, ast.Name)
    }
    return found.pop() if len(found) == 1 else None


def _declared(source: Path, name: str) -> Declared | None:
    """The fields of a class that is defined in `source`, or imported there from a module of ours."""
    tree = _parsed(source)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _of_class(source, node)
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                if (alias.asname or alias.name) == name and node.module.startswith("nemo_gym."):
                    return _declared(PARENT_DIR / (node.module.replace(".", "/") + ".py"), alias.name)
    return None


def _of_class(source: Path, node: ast.ClassDef) -> Declared | None:
    found = Declared()
    for base in node.bases:
        if not isinstance(base, ast.Name):
            return None
        if base.id in ROOTS_OF_ALL:
            continue
        inherited = _declared(source, base.id)
        if inherited is None:
            return None
        found.types |= inherited.types
        found.required |= inherited.required
        found.plain = found.plain and inherited.plain
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            if "ClassVar" not in ast.unparse(statement.annotation):
                found.types[statement.target.id] = statement.annotation
                (found.required.discard if statement.value is not None else found.required.add)(statement.target.id)
        elif isinstance(statement, ast.FunctionDef) and _validates(statement):
            found.plain = False
    return found


def _validates(function: ast.FunctionDef) -> bool:
    if function.name == "accept_omegaconf":  # of ours; refuses nothing
        return False
    names = {part.id for each in function.decorator_list for part in ast.walk(each) if isinstance(part, ast.Name)}
    return bool((names | {function.name}) & VALIDATORS)


def _fits(declared: ast.expr, value: Any) -> bool:
    """Whether a value plainly fits a declared type; text that stands for something else never does."""
    if isinstance(value, str) and "${" in value:
        return False
    if isinstance(declared, ast.BinOp) and isinstance(declared.op, ast.BitOr):
        return _fits(declared.left, value) or _fits(declared.right, value)
    if isinstance(declared, ast.Constant) and declared.value is None:
        return value is None
    if isinstance(declared, ast.Name):
        if declared.id in REFERENCES:
            return isinstance(value, dict) and value.keys() == {"type", "name"}
        kinds = PLAIN_TYPES.get(declared.id)
        return kinds is not None and isinstance(value, kinds) and (declared.id == "bool" or not isinstance(value, bool))
    if isinstance(declared, ast.Subscript) and isinstance(declared.value, ast.Name):
        return _fits_inside(declared.value.id, declared.slice, value)
    return False


def _fits_inside(outer: str, inner: ast.expr, value: Any) -> bool:
    if outer == "Optional":
        return value is None or _fits(inner, value)
    if outer == "Literal":
        choices = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        return any(isinstance(choice, ast.Constant) and choice.value == value for choice in choices)
    if outer in ("list", "List"):
        return isinstance(value, list) and all(_fits(inner, item) for item in value)
    return False
