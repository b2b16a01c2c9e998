"""Check names and prose against docs/glossary.md and the naming rules of CONTRIBUTING.md.

    python -m tools.language [PATH ...]

Prints one line per violation and exits with 1 if there is any. `tests/test_language.py` runs the same checks.
"""

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (
    "nemo_gym", "tests", "perf", "proofs", "chaos", "tools", "dev.py", "benchmarks", "resources_servers",
    "responses_api_agents", "responses_api_models",
)  # fmt: skip
EXEMPT = ("tests/compat/folders", "tests/compat/newer_tree", "tools/language.py", "tests/test_language.py")
"""Folders written in the style of other authors on purpose, and the files that list the banned words."""
DATA = ("resources_servers", "benchmarks")
"""Folders whose strings are data for models; only their docstrings and comments are prose."""
TOOL_DOCSTRINGS = (
    "resources_servers/indirect_prompt_injection/families.py",
    "resources_servers/sales_report/desk.py",
    "resources_servers/workplace_assistant/desk.py",
)
"""Files whose docstrings are tool descriptions in published rows."""

_PARTICIPLES = """
    begun been borne bound bought broken brought built caught chosen come dealt done drawn driven eaten fallen fed felt
    flown forgotten fought found frozen given gone gotten grown had heard held hidden kept known laid led left lent lost
    made meant met paid proven put_off risen said seen sent shaken shown shut sold sought spent spoken stolen stood
    struck sung sunk sworn taken taught thought told torn understood undone woken won worn wound written
"""
_NOT_PARTICIPLES = "bed bleed breed embed exceed feed greed indeed need proceed red seed shed speed succeed weed"
_ADVERBS = """
    again ahead alone along among anew anywhere apart aside away elsewhere hence otherwise plain some such thence there
    these those thus together unless until whom whose
"""
_LOCALS = "asked found given heard known said told wanted"
_FREE_RELATIVES = "How What Whatever When Where Whether Which Who Whoever Whom Whose"
IRREGULAR_PARTICIPLES = frozenset(_PARTICIPLES.split())
NOT_PARTICIPLES = frozenset(_NOT_PARTICIPLES.split())
ADVERBS = frozenset(_ADVERBS.split())
BANNED_LOCALS = frozenset(_LOCALS.split())
FREE_RELATIVES = frozenset(_FREE_RELATIVES.split())
BANNED_PROSE = {
    pattern: re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE)
    for pattern in (
        "nobody", "somebody", "whoever", "whomever", "everybody", "so many", "for ever", "of its own accord",
        "(?:is|are|was|were|be|been|being) told", "tells? apart", "there is none", "there are none", "now and then",
        "of (?:its|their|one's|our|your|his|her) own", "takes? notice", "in vain", "at the slightest",
    )
}  # fmt: skip

ANY_BANNED_PROSE = re.compile("|".join(expression.pattern for expression in BANNED_PROSE.values()), re.IGNORECASE)


@dataclass(frozen=True, order=True)
class Violation:
    """One name or sentence that breaks a rule."""

    path: str
    line: int
    problem: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.problem}"


def is_bare_participle(name: str) -> bool:
    """Return whether a name is one participle, adverb or pronoun that does not say what it names."""
    word = name.strip("_")
    if not word or "_" in word or not word.isalpha():
        return False
    if word[0].isupper() and any(letter.isupper() for letter in word[1:]):
        return False
    word = word.lower()
    is_regular = word.endswith("ed") and len(word) > 4 and word not in NOT_PARTICIPLES
    return is_regular or word in IRREGULAR_PARTICIPLES or word in ADVERBS


def python_files(paths: Iterable[str]) -> Iterator[Path]:
    """Yield the Python files below `paths`, without generated folders and without code in other authors' style."""
    for name in paths:
        path = ROOT / name if not Path(name).is_absolute() else Path(name)
        files = [path] if path.is_file() else sorted(path.rglob("*.py"))
        for file in files:
            relative = relative_name(file)
            if ".venv" not in relative and not relative.startswith(EXEMPT) and "/__pycache__/" not in relative:
                yield file


def relative_name(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


@cache
def parse_file(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(parse_file(path)))


def check_names(path: Path) -> Iterator[Violation]:
    """Find modules, classes, functions and locals that a stranger could not guess."""
    where = relative_name(path)
    if is_bare_participle(path.stem):
        yield Violation(where, 1, f"module {path.stem!r} is named by one participle or adverb")
    fields = {
        id(statement.target)
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }  # names on the wire
    for node in nodes_of(path):
        if id(node) in fields:
            continue
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if is_bare_participle(node.name):
                kind = "class" if isinstance(node, ast.ClassDef) else "function"
                yield Violation(where, node.lineno, f"{kind} {node.name!r} is named by one participle or adverb")
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in BANNED_LOCALS:
            yield Violation(where, node.lineno, f"local {node.id!r} does not say what it holds")
        elif isinstance(node, ast.arg) and node.arg in BANNED_LOCALS:
            yield Violation(where, node.lineno, f"parameter {node.arg!r} does not say what it holds")


def check_prose(path: Path) -> Iterator[Violation]:
    """Find banned words in docstrings, strings and comments, and docstrings that open with a free relative."""
    where = relative_name(path)
    source = path.read_text(encoding="utf-8")
    only_docstrings = "tests" in path.parts or where.startswith(DATA)
    is_clean = ANY_BANNED_PROSE.search(" ".join(source.split())) is None  # the tokenizer is slow
    for token in () if is_clean else tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and not only_docstrings):
            yield from _banned_words(where, token)
    if where in TOOL_DOCSTRINGS:
        return
    for node in nodes_of(path):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            continue
        docstring = ast.get_docstring(node)
        if not docstring:
            continue
        line = 1 if isinstance(node, ast.Module) else node.lineno
        if only_docstrings:
            for pattern, expression in BANNED_PROSE.items():
                if expression.search(docstring):
                    yield Violation(where, line, f"banned words in a docstring: {pattern!r}")
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and "tests" not in path.parts
            and docstring.split()[0] in FREE_RELATIVES
        ):
            opening = docstring.split()[0]
            yield Violation(where, line, f"docstring of {node.name} opens with {opening!r}; use an imperative")


def check_test_docstrings(path: Path) -> Iterator[Violation]:
    """Find test functions without a docstring that says why the behaviour matters."""
    where = relative_name(path)
    if "tests" not in Path(where).parts or not path.name.startswith("test_"):
        return
    for node in nodes_of(path):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("test_") and not ast.get_docstring(node):
            yield Violation(where, node.lineno, f"test {node.name!r} has no docstring; say why the behaviour matters")


def _banned_words(where: str, token: tokenize.TokenInfo) -> Iterator[Violation]:
    text = " ".join(token.string.split())
    for expression in BANNED_PROSE.values():
        match = expression.search(text)
        if match:
            yield Violation(where, token.start[0], f"banned words: {match.group()!r}")


def repeated_class_names(files: Iterable[Path]) -> Iterator[Violation]:
    """Find class names that two modules of the package define."""
    locations_by_name: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for path in files:
        for node in parse_file(path).body:
            if isinstance(node, ast.ClassDef):
                locations_by_name[node.name.lstrip("_")].append((relative_name(path), node.lineno))
    for name, locations in sorted(locations_by_name.items()):
        if len({path for path, _ in locations}) > 1:
            others = ", ".join(f"{path}:{line}" for path, line in locations[1:])
            yield Violation(*locations[0], f"class {name!r} is also defined at {others}")


def find_violations(paths: Iterable[str] = SOURCES) -> list[Violation]:
    """Check all files below `paths`; class names are compared across the whole package."""
    files = list(python_files(paths))
    checks = (check_names, check_prose, check_test_docstrings)
    violations = [violation for path in files for check in checks for violation in check(path)]
    checked = {relative_name(path) for path in files}
    repeated = repeated_class_names(python_files(["nemo_gym"]))
    violations += [violation for violation in repeated if any(name in str(violation) for name in checked)]
    return sorted(set(violations))


def main() -> int:
    """Print the violations below the paths of the command line."""
    violations = find_violations(sys.argv[1:] or SOURCES)
    for violation in violations:
        print(violation)
    print(f"{len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
