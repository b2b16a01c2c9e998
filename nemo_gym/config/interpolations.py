"""`${…}`: the resolvers of our own, a check that all of them lead somewhere, and their errors in plain words."""

import re
from collections.abc import Iterable
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException

from nemo_gym.config.merge import Tree, followed, leaves, lookup, mentions
from nemo_gym.config.problems import Path, Problem, dotted, nearest
from nemo_gym.config.secrets import is_secret_name
from nemo_gym.errors import ConfigInterpolationError

POLICY_KEYS = ("policy_base_url", "policy_api_key", "policy_model_name")
MAX_VALUES = 50_000
_LONGEST_CHAIN = 40
_SMALLER = "refer to smaller blocks"
_REFERENCE = re.compile(r"\$\{([^${}:]+)\}")
_KEY_NOT_FOUND = re.compile(r"Interpolation key '([^']*)' not found")


def register_resolvers() -> None:
    """Let `${inherit_from:…}` and `${copy:…}` pass through OmegaConf unchanged until the directives are carried out."""
    for word in ("inherit_from", "copy"):
        if not OmegaConf.has_resolver(word):
            OmegaConf.register_new_resolver(word, _repeating(word))


def _repeating(word: str) -> Any:
    def resolver(path: str) -> str:
        return f"${{{word}:{path}}}"

    return resolver


def check_interpolations(
    config: DictConfig, tree: Tree, *, strict_under: set[str], env_name: str | None
) -> tuple[list[Problem], list[str]]:
    """Problems for the `${…}` under the given top-level keys that lead nowhere, and warnings for the others.

    `env_name` is the env.yaml that was read, if any.
    """
    texts = {path: value for path, value in leaves(tree) if isinstance(value, str) and "${" in value}
    if not texts:
        return [], []
    oversized = _oversized(texts, tree)
    too_many = [problem for problem in oversized.values() if problem.fix == _SMALLER]
    if too_many:  # resolving anything now would take for ever
        return too_many[:1], []
    problems: list[Problem] = []
    warnings: list[str] = []
    unset_policy: dict[str, list[Path]] = {}
    for path, text in texts.items():
        problem = oversized.get(path)
        if problem is None and mentions(followed(text, tree)):
            problem = _unresolved(config, path, text)
        if problem is None:
            continue
        if path[0] not in strict_under:
            warnings.append(f"{dotted(path)}: {problem.what}")
        elif (missing := _missing_key(problem)) in POLICY_KEYS:
            unset_policy.setdefault(missing, []).append(path)
        else:
            problems.append(problem)
    if unset_policy:
        problems.insert(0, _policy_problem(unset_policy, env_name))
    return problems, warnings


def _unresolved(config: DictConfig, path: Path, text: str) -> Problem | None:
    try:
        node: Any = config
        for part in path[:-1]:
            node = node[part] if isinstance(part, int) else node[_key(node, part)]
        last = path[-1]
        _ = node[last] if isinstance(last, int) else node[_key(node, last)]
    except (OmegaConfBaseException, RecursionError, ValueError, TypeError, OSError, AttributeError, KeyError) as error:
        return interpolation_problem(error, path, text, names=[str(key) for key in config])
    return None


def _key(node: Any, part: str) -> Any:
    return part if part in node else next((key for key in node if str(key) == part), part)


def interpolation_problem(error: BaseException, path: Path, text: str, *, names: Iterable[str] = ()) -> Problem:
    """Say which value could not be filled in, what it lacks and how to give it."""
    secret = any(is_secret_name(part) for part in path if isinstance(part, str))
    shown = text if len(text) <= 120 else text[:120] + "…"
    if secret and "," in shown:  # a default may stand there
        shown = shown[: shown.index(",")] + ",…}"
    if isinstance(error, RecursionError):
        what = f"'{dotted(path)}' is {shown}, which leads in a circle"
        return Problem(what, path, "break the circle", kind=ConfigInterpolationError)
    match = _KEY_NOT_FOUND.search(str(error))
    if isinstance(error, InterpolationKeyError) and match:
        key = match[1]
        close = nearest(key, names)
        hint = f" — did you mean '{close[0]}'?" if close else ""
        what = f"'{dotted(path)}' is {shown}, but '{key}' is not set{hint}"
        fix = f"set '{key}' in env.yaml or pass ++{key}=<value>"
        return Problem(what, path, fix, kind=ConfigInterpolationError)
    reason = type(error).__name__ if secret or not str(error) else str(error).splitlines()[0]
    return Problem(f"'{dotted(path)}' is {shown}: {reason}", path, kind=ConfigInterpolationError)


def _missing_key(problem: Problem) -> str:
    found = re.search(r"but '([^']*)' is not set", problem.what)
    return found[1] if found else ""


def _policy_problem(unset: dict[str, list[Path]], env_name: str | None) -> Problem:
    names = [key for key in POLICY_KEYS if key in unset]
    users = sorted({dotted(path) for paths in unset.values() for path in paths})
    what = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not set, but used by {', '.join(users)}"
    what += "" if env_name else "; there is no env.yaml"
    flags = {"policy_base_url": "--model-url", "policy_api_key": "--model-api-key", "policy_model_name": "--model"}
    passed = " ".join(f"+{key}=…" for key in names)
    file = f"add to {env_name}" if env_name else "create env.yaml with"
    keys = ", ".join(names if env_name else POLICY_KEYS)
    fix = f"{file} the keys {keys}, or pass {passed} (or {', '.join(flags[key] for key in names)})"
    return Problem(what, unset[names[0]][0], fix, kind=ConfigInterpolationError)


class _Weights:
    """How many values a part of the tree becomes once its `${…}` are followed; infinite for a circle."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.known: dict[Path, float] = {}

    def of(self, path: Path, node: Any, under_way: tuple[Path, ...] = ()) -> float:
        if path in self.known:
            return self.known[path]
        if isinstance(node, dict):
            total = 1 + sum(self.of((*path, str(key)), value, under_way) for key, value in node.items())
        elif isinstance(node, list):
            total = 1 + sum(self.of((*path, index), value, under_way) for index, value in enumerate(node))
        elif isinstance(node, str) and "${" in node:
            total = self._followed(path, node, under_way)
        else:
            return 1
        self.known[path] = total
        return total

    def _followed(self, path: Path, text: str, under_way: tuple[Path, ...]) -> float:
        if path in under_way or len(under_way) > _LONGEST_CHAIN:
            return float("inf")
        total = 1.0
        for name in _REFERENCE.findall(text):
            target = tuple(name.strip().split("."))
            total += self.of(target, lookup(self.tree, target), (*under_way, path))
        return total


def _oversized(texts: dict[Path, str], tree: Tree) -> dict[Path, Problem]:
    """Values that would become absurdly large or never end, found without resolving them."""
    weights = _Weights(tree)
    found: dict[Path, Problem] = {}
    total = 0.0
    for path, text in texts.items():
        try:
            weight = weights.of(path, text)
        except RecursionError:
            weight = float("inf")
        total += weight
        if weight == float("inf"):
            found[path] = interpolation_problem(RecursionError(), path, text)
        elif total > MAX_VALUES:
            what = f"'{dotted(path)}' makes more than {MAX_VALUES:,} values of this configuration"
            found[path] = Problem(what, path, _SMALLER, kind=ConfigInterpolationError)
    return found
