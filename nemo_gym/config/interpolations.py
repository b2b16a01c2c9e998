"""Interpolations `${…}`: check that each can be resolved, and explain those that cannot."""

import math
import re
from collections.abc import Iterable
from typing import Any

from omegaconf import DictConfig
from omegaconf.errors import InterpolationKeyError

from nemo_gym.config.keys import KEYS
from nemo_gym.config.omegaconf_adapter import RESOLVE_ERRORS
from nemo_gym.config.problems import ConfigProblem, KeyPath, did_you_mean, dotted_path
from nemo_gym.config.provider_keys import KEY
from nemo_gym.config.secret_names import has_secret_name
from nemo_gym.config.trees import Tree, iter_leaves, lookup
from nemo_gym.errors import ConfigInterpolationError

POLICY_KEYS = ("policy_base_url", "policy_api_key", "policy_model_name")
MAX_VALUES = 50_000
_LONGEST_CHAIN = 40
_REFERENCE = re.compile(r"\$\{([^${}:]+)\}")
_RAISED = re.compile(r"^\w+ raised while resolving interpolation: ")
_KEY_NOT_FOUND = re.compile(r"Interpolation key '([^']*)' not found")


def check_interpolations(
    config: DictConfig, tree: Tree, *, strict_under: set[str], env_name: str | None, key_advice: str = ""
) -> tuple[list[ConfigProblem], list[str]]:
    """Return problems and warnings for the `${…}` that cannot be resolved.

    They are problems under the top-level keys `strict_under`, and everywhere if the value is malformed; else warnings.

    `env_name` is the path of the env.yaml that was read, or None. `key_advice` is added to the fix of an unset key of
    the model.
    """
    texts = {path: value for path, value in iter_leaves(tree) if isinstance(value, str) and "${" in value}
    if not texts:
        return [], []
    cyclic, oversized = _check_sizes(texts, tree)
    if oversized:  # resolving would take too long
        return [oversized], []
    problems: list[ConfigProblem] = []
    warnings: list[str] = []
    unset_policy: dict[str, list[KeyPath]] = {}
    for path, text in texts.items():
        error = RecursionError() if path in cyclic else _resolution_error(config, path)
        if error is None:
            continue
        problem = interpolation_problem(error, path, text, names=map(str, config))
        unset_key = _unset_key(error)
        if path[0] not in strict_under and not _is_malformed(error):
            warnings.append(f"{dotted_path(path)}: {problem.what}")
        elif unset_key in POLICY_KEYS:
            unset_policy.setdefault(unset_key, []).append(path)
        else:
            problems.append(problem)
    if unset_policy:
        problems.insert(0, _policy_problem(unset_policy, env_name, key_advice))
    return problems, warnings


def _resolution_error(config: DictConfig, path: KeyPath) -> BaseException | None:
    """Resolve the value at `path` and return the error; None if there is no error."""
    node: Any = config
    try:
        for part in path:
            if isinstance(part, str) and part not in node:  # YAML may have read the key as a number
                node = node[next((key for key in node if str(key) == part), part)]
            else:
                node = node[part]
    except (*RESOLVE_ERRORS, AttributeError, KeyError) as error:
        return error
    return None


def _unset_key(error: BaseException) -> str:
    """Return the key that an interpolation refers to and that is not set, or an empty text."""
    match = _KEY_NOT_FOUND.search(str(error)) if isinstance(error, InterpolationKeyError) else None
    return match[1] if match else ""


def interpolation_problem(
    error: BaseException, path: KeyPath, text: str, *, names: Iterable[str] = ()
) -> ConfigProblem:
    """Return the problem of a value that cannot be resolved, with the reason and the fix."""
    is_secret = has_secret_name(path)
    short = text if len(text) <= 120 else text[:120] + "…"
    if is_secret and "," in short:  # a default value may follow, which would be a secret
        short = short[: short.index(",")] + ",…}"
    what = f"'{dotted_path(path)}' is {short}"
    key = _unset_key(error)
    fix: str | None = None
    if isinstance(error, RecursionError):
        what, fix = f"{what}, which is a cyclic reference", "remove one of the references"
    elif key:
        what = f"{what}, but '{key}' is not set{did_you_mean(key, names)}"
        fix = f"set '{key}' in env.yaml or pass ++{key}=<value>"
    elif _is_malformed(error):
        has_inner_value = "${" in text[2:]  # the reason would quote the inner value, which may be secret
        reason = "" if is_secret or has_inner_value else f" ({_first_line(error)})"
        what, fix = (
            f"{what}, which cannot be parsed{reason}",
            "write ${oc.decode:…} of a value like 5, text, [1, two] or {key: value}; keys must not be quoted",
        )
    else:
        what = f"{what}: {type(error).__name__ if is_secret else _first_line(error)}"
    return ConfigProblem(what, path, fix, kind=ConfigInterpolationError)


def _is_malformed(error: BaseException) -> bool:
    """Return whether a resolver such as `oc.decode` could not parse its argument."""
    return str(error).startswith("GrammarParseError raised")


def _first_line(error: BaseException) -> str:
    """Return the reason of a failed resolution without the name of OmegaConf's error class."""
    return _RAISED.sub("", str(error).splitlines()[0]) if str(error) else type(error).__name__


def _policy_problem(unset: dict[str, list[KeyPath]], env_name: str | None, key_advice: str = "") -> ConfigProblem:
    """Return one problem for all keys of the evaluated model in `unset`: key -> paths of the values that need it."""
    names = [key for key in POLICY_KEYS if key in unset]
    dependents = sorted({dotted_path(path) for paths in unset.values() for path in paths})
    what = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not set, but used by {', '.join(dependents)}"
    what += "" if env_name else "; env.yaml not found"
    overrides = " ".join(f"+{key}=…" for key in names)
    flags = ", ".join(flag.name for key in names if (flag := KEYS[key].flag))
    file_advice = f"add to {env_name}" if env_name else "create env.yaml with"
    keys = ", ".join(names if env_name else POLICY_KEYS)
    fix = f"{file_advice} the keys {keys}, or pass {overrides} (or {flags})"
    fix += key_advice if KEY in unset else ""
    return ConfigProblem(what, unset[names[0]][0], fix, kind=ConfigInterpolationError)


def _check_sizes(texts: dict[KeyPath, str], tree: Tree) -> tuple[set[KeyPath], ConfigProblem | None]:
    """Return the paths of texts with cyclic references, and a problem if resolving would create too many values."""
    sizes: dict[KeyPath, float] = {}
    """Number of values that a part of the tree has after resolving its `${…}`; infinite for a cycle."""

    def resolved_size(path: KeyPath, node: Any, chain: tuple[KeyPath, ...]) -> float:
        """Return the resolved size of `node`; `chain` has the references that lead to it."""
        if path in sizes:
            return sizes[path]
        total = 1.0
        if isinstance(node, dict | list):
            children = node.items() if isinstance(node, dict) else enumerate(node)
            total += sum(resolved_size((*path, str(key)), value, chain) for key, value in children)
        elif isinstance(node, str) and "${" in node:
            if path in chain or len(chain) > _LONGEST_CHAIN:
                return math.inf
            for name in _REFERENCE.findall(node):
                target = tuple(name.strip().split("."))
                total += resolved_size(target, lookup(tree, target), (*chain, path))
        sizes[path] = total
        return total

    cyclic: set[KeyPath] = set()
    sum_of_sizes = 0.0
    for path, text in texts.items():
        try:
            size = resolved_size(tuple(map(str, path)), text, ())
        except RecursionError:
            size = math.inf
        if size == math.inf:
            cyclic.add(path)
            continue
        sum_of_sizes += size
        if sum_of_sizes > MAX_VALUES:
            what = f"'{dotted_path(path)}' expands this configuration to more than {MAX_VALUES:,} values"
            return cyclic, ConfigProblem(what, path, "refer to smaller blocks", kind=ConfigInterpolationError)
    return cyclic, None
