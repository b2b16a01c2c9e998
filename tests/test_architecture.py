"""The layers and size limits of docs/architecture.md hold."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from nemo_gym.keys import COMPONENT_FOLDERS

PACKAGE = Path(__file__).resolve().parent.parent / "nemo_gym"

# Top layer first. A module may import from layers below its own and from its own package, nothing else of ours.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("__main__", "cli_setup_command"),
    ("cli",),
    ("view",),
    ("training",),
    ("rollout_reverification", "evaluation"),
    ("environment",),
    ("verifier_fixture",),
    ("rollout_collection", "train_data_utils"),
    (
        "adapters",
        "path_utils",
        "prompt",
        "rollout_health",
        "skills",
        "task_data",
        "task_materialization",
        "tool_access",
        "benchmarks",
        "hf_utils",
        "gitlab_utils",
        "dataset_orchestrator",
        "episode_types",
        "single_agent_turn_types",
        "testing",
        "vision_input",
    ),
    ("rollouts", "data", "launch", "sandbox", "exporters", "authoring", "workers", "analysis"),
    ("base_environment_server", "base_resources_server", "base_responses_api_agent", "base_responses_api_model"),
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
    ("token_id_capture",),
    ("serve", "capture"),
    ("global_config",),
    ("transport", "catalog", "journal"),
    ("config", "convert", "metrics", "grading"),
    ("wire",),
    ("deliverables", "errors", "failure_kinds", "keys", "processes"),
)
LAYER_OF = {name: layer for layer, names in enumerate(LAYERS) for name in names}

# Modules that only re-export names for code written for NeMo Gym. Our own code imports the definitions.
FACADES = frozenset(
    {
        "anthropic_utils",
        "benchmarks",
        "cli_setup_command",
        "dataset_orchestrator",
        "episode_types",
        "hf_utils",
        "mcp_auto_exposure",
        "path_utils",
        "profiling",
        "prompt",
        "rollout_health",
        "rollout_observability",
        "secret_utils",
        "skills",
        "tool_access",
    }
)

MAX_LINES_PER_MODULE = 500
MAX_LINES_PER_FUNCTION = 60

MODULES = tuple(sorted(PACKAGE.rglob("*.py")))


@cache
def source_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(source_of(path))


def unit_of(path: Path) -> str:
    """Return the layer entry a file belongs to: its first folder, or its own name."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def relative_name(path: Path) -> str:
    return str(path.relative_to(PACKAGE.parent))


def imported_units(path: Path) -> Iterator[tuple[int, str]]:
    """Yield every part of `nemo_gym` that a file imports, at any nesting level, with its line."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            targets = [node.module] if node.module != "nemo_gym" else [f"nemo_gym.{a.name}" for a in node.names]
        else:
            continue
        for target in targets:
            parts = target.split(".")
            if parts[0] == "nemo_gym" and len(parts) > 1 and parts[1] in LAYER_OF:
                yield node.lineno, parts[1]


def units_with_imports() -> Iterator[tuple[Path, str, int, str]]:
    for path in MODULES:
        unit = unit_of(path)
        if unit != "__init__":
            for line, target in imported_units(path):
                yield path, unit, line, target


def test_every_module_has_a_layer() -> None:
    """A module outside the map could import anything."""
    units = {unit_of(path) for path in MODULES} - {"__init__"}

    assert units == set(LAYER_OF), "add or remove the unit in LAYERS and in docs/architecture.md"


def test_imports_point_down() -> None:
    """A reader can rely on it that lower layers do not know the upper ones, and that neighbours are independent."""
    upward = [
        f"{relative_name(path)}:{line} imports {target}"
        for path, unit, line, target in units_with_imports()
        if target != unit and LAYER_OF[target] <= LAYER_OF[unit]
    ]

    assert not upward


def test_facades_are_for_other_people() -> None:
    """A name has one home; an import through a facade would hide it."""
    through_facades = [
        f"{relative_name(path)}:{line} imports {target}"
        for path, unit, line, target in units_with_imports()
        if target in FACADES and unit not in FACADES
    ]

    assert not through_facades


def test_modules_and_functions_stay_small() -> None:
    """A longer one holds two concepts."""
    long_modules = [relative_name(path) for path in MODULES if source_of(path).count("\n") > MAX_LINES_PER_MODULE]
    long_functions = [
        f"{relative_name(path)}:{node.lineno} {node.name}"
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > MAX_LINES_PER_FUNCTION
    ]

    assert not long_modules
    assert not long_functions


def test_relative_imports_are_not_used() -> None:
    """A relative import hides which layer it comes from."""
    relative = [
        f"{relative_name(path)}:{node.lineno}"
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom) and node.level
    ]

    assert not relative


def test_every_module_has_a_docstring() -> None:
    """The folder listing is the map; the first line of each file explains its entry."""
    undocumented = [relative_name(path) for path in MODULES if not ast.get_docstring(tree_of(path))]

    assert not undocumented


def test_every_package_lists_its_modules() -> None:
    """The first file a reader opens in a package says what is in the others. `ls nemo_gym/cli` is the command tree."""
    missing = [
        f"{relative_name(package)}: {module.stem}"
        for package in MODULES
        if package.name == "__init__.py" and package.parent != PACKAGE and unit_of(package) != "cli"
        for module in sorted(package.parent.glob("*.py"))
        if not module.stem.startswith("_") and module.stem not in (ast.get_docstring(tree_of(package)) or "")
    ]

    assert not missing


def test_the_map_in_the_docs_names_every_layer() -> None:
    """People read docs/architecture.md; it must agree with what is enforced."""
    text = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")

    assert not [unit for unit in LAYER_OF if f"`{unit}`" not in text]


def test_a_component_folder_imports_no_other_component_folder():
    """A user's folder replaces a shipped one of that name; what a shipped folder shares with others is in nemo_gym.

    Generators of data, which no server imports, may read the questions of a benchmark. `local_vllm_model` extends
    the `vllm_model` of the tree, through names that every version of that folder has.
    """
    root = PACKAGE.parent
    extended = "responses_api_models.vllm_model.app"
    offences = []
    for kind in COMPONENT_FOLDERS:
        for path in (root / kind).glob("*/**/*.py"):
            folder = path.relative_to(root).parts[:2]
            if "tests" in path.parts or path.name == "generate.py":
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
                if folder[1] == "local_vllm_model":
                    names = [name for name in names if name != extended]
                parts = [tuple(name.split(".")[:2]) for name in names]
                offences += [f"{path}: {part}" for part in parts if part[0] in COMPONENT_FOLDERS and part != folder]
    assert offences == []


def test_only_the_ray_engine_imports_ray():
    """Ray is an extra, heavy and slow to import: servers, trainers and the local engine must not load it.

    `serve/webserver` joins the cluster of servers that call Ray themselves, as earlier versions did.
    """
    allowed = (PACKAGE / "launch" / "engines" / "ray", PACKAGE / "serve" / "webserver.py")
    offences = []
    for path in MODULES:
        if path.is_relative_to(allowed[0]) or path == allowed[1]:
            continue
        for node in ast.walk(tree_of(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [node.value] if isinstance(node, ast.Constant) and node.value == "ray.util" else []
            offences += [f"{relative_name(path)}: {name}" for name in names if name.split(".")[0] == "ray"]
    assert offences == []


def test_only_the_choice_of_an_engine_names_the_ray_engine():
    """Which engine is in use is known in one place."""
    users = {
        relative_name(path)
        for path in MODULES
        if not path.is_relative_to(PACKAGE / "launch" / "engines" / "ray")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nemo_gym.launch.engines.ray")
    }
    assert users == {"nemo_gym/launch/engines/base.py"}
