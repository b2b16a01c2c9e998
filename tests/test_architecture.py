"""The layers and size budgets of docs/architecture.md hold."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "nemo_gym"

# Top floor first. A module may import from floors below its own and from its own package, nothing else of ours.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("cli_setup_command",),
    ("cli",),
    ("view",),
    ("rollout_reverification",),
    ("rollout_collection", "train_data_utils"),
    ("path_utils", "prompt", "skills", "benchmarks", "hf_utils", "gitlab_utils", "dataset_orchestrator"),
    ("rollouts", "data", "launch", "sandbox", "exporters", "scaffold", "environment", "workers", "orchestration"),
    ("base_resources_server", "base_responses_api_agent", "base_responses_api_model"),
    ("judge",),
    ("server_utils",),
    (
        "anthropic_converter",
        "anthropic_utils",
        "chat_streaming",
        "config_types",
        "mcp_auto_exposure",
        "openai_utils",
        "profiling",
        "responses_converter",
        "responses_streaming",
        "reward_profile",
        "rollout_correlation",
        "rollout_observability",
        "secret_utils",
    ),
    ("serve", "capture"),
    ("global_config",),
    ("net", "catalog"),
    ("config", "convert", "metrics", "grading"),
    ("wire",),
    ("errors", "forks", "keys"),
)
FLOOR_OF = {name: floor for floor, names in enumerate(FLOORS) for name in names}

MOST_LINES_PER_MODULE = 400
MOST_LINES_PER_FUNCTION = 60

MODULES = sorted(PACKAGE.rglob("*.py"))
IDS = [str(path.relative_to(PACKAGE)) for path in MODULES]


def unit_of(path: Path) -> str:
    """The floor entry a file belongs to: its first folder, or its own name."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported_units(path: Path) -> Iterator[tuple[int, str]]:
    """Every part of `nemo_gym` this file imports, at any nesting level, with its line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            targets = [node.module] if node.module != "nemo_gym" else [f"nemo_gym.{a.name}" for a in node.names]
        else:
            continue
        for target in targets:
            parts = target.split(".")
            if parts[0] == "nemo_gym" and len(parts) > 1 and parts[1] in FLOOR_OF:
                yield node.lineno, parts[1]


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_imports_point_down(path: Path) -> None:
    """A reader may trust that nothing below knows what is above, and that neighbours are strangers."""
    unit = unit_of(path)
    if unit == "__init__":
        return
    assert unit in FLOOR_OF, f"{unit} has no floor: add it to FLOORS and to docs/architecture.md"

    upward = [
        f"{path.name}:{line} imports {target}"
        for line, target in imported_units(path)
        if target != unit and FLOOR_OF[target] <= FLOOR_OF[unit]
    ]

    assert not upward


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_modules_and_functions_stay_small(path: Path) -> None:
    """Whatever needs more than this wants to be two things."""
    source = path.read_text(encoding="utf-8")
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = [
        f"{f.name}: {f.end_lineno - f.lineno + 1} lines"
        for f in functions
        if f.end_lineno is not None and f.end_lineno - f.lineno + 1 > MOST_LINES_PER_FUNCTION
    ]

    assert source.count("\n") <= MOST_LINES_PER_MODULE
    assert not long


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_relative_imports_are_not_used(path: Path) -> None:
    """A relative import hides which floor it comes from."""
    tree = ast.parse(path.read_text(encoding="utf-8"))

    assert not [n.lineno for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level]


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_every_module_says_what_it_is(path: Path) -> None:
    """The folder listing is the map; the first line of each file is its legend."""
    source = path.read_text(encoding="utf-8")

    assert not source.strip() or ast.get_docstring(ast.parse(source))


def test_the_map_in_the_docs_names_every_floor() -> None:
    """docs/architecture.md is what people read; it must not drift from what is enforced."""
    text = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    existing = {unit_of(path) for path in MODULES} - {"__init__"}

    assert not [unit for unit in existing if f"`{unit}`" not in text and f" {unit}" not in text]
