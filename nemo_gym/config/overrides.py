"""Parse command-line overrides in Hydra's grammar and apply them to plain data.

`+a.b=1` adds, `++a.b=1` adds or replaces, `a.b=1` replaces an existing value, `~a.b` deletes. "Existing" refers to the
merged configuration, files included. Hydra is used for its grammar only, and only in this module.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

from nemo_gym.config.problems import ConfigProblem, did_you_mean, dotted_path, raise_all
from nemo_gym.config.secret_names import has_secret_name
from nemo_gym.config.secret_text import MASK, mask_assignments, mask_text
from nemo_gym.config.trees import ABSENT, Tree, child_value, copy_tree, lookup, merge_into
from nemo_gym.config.yaml_text import MAX_DEPTH

MAX_TOKEN_CHARACTERS = 64 * 1024
_TEXT = r'"[A-Za-z0-9_./:@+-]*"'
_KEY = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
SIMPLE_OVERRIDE = re.compile(rf"(\+\+?)({_KEY})=(true|false|{_TEXT}|\[{_TEXT}(?:, ?{_TEXT})*\])", re.ASCII)
"""Overrides whose value is the same in JSON and in Hydra's grammar."""

_ACTIONS: dict[str, Literal["add", "force", "change", "delete"]] = {
    "ADD": "add",
    "FORCE_ADD": "force",
    "CHANGE": "change",
    "DEL": "delete",
}


@dataclass(frozen=True)
class Override:
    """One parsed command-line token."""

    token: str = field(repr=False)
    action: Literal["add", "force", "change", "delete"]
    path: tuple[str, ...]
    value: Any = field(default=None, repr=False)

    @property
    def where(self) -> str:
        return _token_location(self.token)


def display_token(token: str) -> str:
    """Return the token for messages, with secrets masked and long text shortened."""
    text = mask_word(token).encode("utf-8", "replace").decode()
    return text if len(text) <= 200 else text[:200] + "…"


def mask_word(word: str) -> str:
    """Return a word of a command line with its secrets masked: `+a.password=x`, `--api-key=x`, `+a={token: x}`."""
    key, equals, value = word.partition("=")
    if equals and value and has_secret_name(key.lstrip("+-~").replace("-", "_").split(".")):
        return f"{key}={MASK}"
    masked = mask_assignments(value)
    if masked != value and value.startswith(("{", "[")):  # a quoted secret may continue after the masked part
        masked = MASK
    return f"{mask_text(key)}{equals}{masked}"


def _token_location(token: str) -> str:
    return f"override '{display_token(token)}'"


def parse_overrides(tokens: Sequence[str]) -> list[Override]:
    """Parse every token; raise one ConfigError that lists all invalid tokens."""
    problems: list[ConfigProblem] = []
    overrides: list[Override] = []
    parse: Callable[[str], Override | ConfigProblem] | None = None
    for token in tokens:
        parsed = _precheck(token) or _parse_simple(token)
        if parsed is None:
            parse = parse or hydra_parser()
            parsed = parse(token)
        if isinstance(parsed, ConfigProblem):
            problems.append(parsed)
        elif parsed.path[0] != "hydra":  # settings of Hydra's own runner, which is not used
            overrides.append(parsed)
    raise_all(problems)
    return overrides


def _precheck(token: str) -> ConfigProblem | None:
    """Return the problem of a token that must not be passed to Hydra's parser; None for other tokens."""
    where = _token_location(token)
    fix = "put it in a YAML file"
    if len(token) > MAX_TOKEN_CHARACTERS:
        return ConfigProblem(f"is longer than {MAX_TOKEN_CHARACTERS:,} characters", where=where, fix=fix)
    if any("\ud800" <= character <= "\udfff" for character in token):
        return ConfigProblem("is not valid UTF-8 text", where=where)
    depths = accumulate((character in "[{") - (character in "]}") for character in token)
    if max(depths, default=0) > MAX_DEPTH:
        return ConfigProblem(f"nested more than {MAX_DEPTH} levels deep", where=where, fix=fix)
    key, equals, value = token.partition("=")
    if equals and value.strip("'\"") == MASK and mask_word(f"{key}=x") != f"{key}=x":
        problem = f"{MASK} stands for a secret that is not printed"
        return ConfigProblem(problem, where=where, fix="give the key, or keep it in env.yaml and leave this out")
    if token.startswith("-"):
        return ConfigProblem("is not an override", where=where, fix="overrides look like +key=value")
    return None


def _parse_simple(token: str) -> Override | None:
    """Parse a simple token, such as our own flags produce, without importing Hydra; None for other tokens."""
    match = SIMPLE_OVERRIDE.fullmatch(token)
    if match is None:
        return None
    sign, key, value = match.groups()
    return Override(token, "force" if sign == "++" else "add", tuple(key.split(".")), json.loads(value))


def hydra_parser() -> Callable[[str], Override | ConfigProblem]:
    """Import Hydra and return a function that parses one token."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()

    def parse(token: str) -> Override | ConfigProblem:
        try:
            return _from_hydra(token, parser.parse_rule(token, "override"))
        except HydraException as error:
            return _syntax_problem(token, str(error), error.__cause__)
        except RecursionError:
            return _syntax_problem(token, "nested too deep", None)
        except (ValueError, TypeError, AttributeError, OverflowError) as error:  # from casts such as int(…)
            return _syntax_problem(token, str(error), None)

    return parse


def _from_hydra(token: str, parsed: Any) -> Override | ConfigProblem:
    """Convert Hydra's parsed override; features that are not supported here are problems."""
    where = _token_location(token)
    key = parsed.key_or_group
    if parsed.package is not None or "/" in key:
        return ConfigProblem("config groups are not used here", where=where, fix="write dotted keys: +a.b=value")
    path = tuple(key.split("."))
    if not all(path):
        return ConfigProblem("has no key before '='", where=where, fix="overrides look like +key=value")
    if parsed.is_sweep_override():
        fix = f"{token.partition('=')[0]}=[a,b] for a list, or quote text that contains commas"
        return ConfigProblem("has several values, separated by commas", where=where, fix=fix)
    return Override(token, _ACTIONS[parsed.type.name], path, copy_tree(parsed.value()))


def _syntax_problem(token: str, reason: str, cause: BaseException | None) -> ConfigProblem:
    """Return the problem of a token that Hydra cannot parse, with its column if `cause` has one."""
    reason = reason.splitlines()[0] if reason else "not in Hydra's override grammar"
    text = display_token(token)
    if MASK in text or len(reason) > 200:  # the reason may quote the token with its secret
        reason = "not in Hydra's override grammar"
    column = getattr(cause, "startIndex", None)
    if column is None:
        column = getattr(getattr(cause, "offendingToken", None), "column", None)
    if column is None and "<EOF>" in reason:
        column = len(token)
    pointer = f"\n    {text}\n    {' ' * column}^" if isinstance(column, int) and text == token else ""
    where = f"override '{text}'" + (f", column {column + 1}" if isinstance(column, int) else "")
    fix = "quote a value with spaces or special characters: '+key=\"a b\"'" if "=" in token else "write +key=value"
    return ConfigProblem(f"cannot be read: {reason}{pointer}", where=where, fix=fix)


def apply_overrides(overrides: Sequence[Override]) -> tuple[Tree, list[Override]]:
    """Build the tree of the overrides alone; return it and the overrides that change or delete values of files.

    `+a=1` is an error if `a` has a value. `+a={…}` is merged with the value, and `+a=[…]` replaces it.
    """
    tree: Tree = {}
    pending: list[Override] = []
    problems: list[ConfigProblem] = []
    for override in overrides:
        existing = lookup(tree, override.path, default=ABSENT)
        is_new = existing is ABSENT or existing is None
        if override.action in ("change", "delete") and existing is ABSENT:
            pending.append(override)
        elif override.action == "add" and not is_new and not isinstance(override.value, dict | list):
            key = dotted_path(override.path)
            fix = f"++{key}=… to replace it"
            if key == "config_paths" and isinstance(override.value, str):
                fix = f"+{key}=[{override.value}], which is added to the files of other flags"
            problems.append(ConfigProblem(f"'{key}' is given twice", where=override.where, fix=fix))
        else:
            problems.extend(_apply(tree, override))
    raise_all(problems)
    return tree, pending


def apply_pending(tree: Tree, pending: Sequence[Override], *, strict: bool) -> None:
    """Apply overrides that change or delete existing values. With `strict`, a missing value is an error."""
    problems: list[ConfigProblem] = []
    for override in pending:
        if lookup(tree, override.path, default=ABSENT) is not ABSENT:
            problems.extend(_apply(tree, override))
        elif strict:
            problems.append(_missing_target(tree, override))
    raise_all(problems)


def _missing_target(tree: Tree, override: Override) -> ConfigProblem:
    """Return the problem of an override whose value does not exist, with a similar name."""
    node: Any = tree
    for missing in override.path:  # ends at the first part that does not exist
        child = child_value(node, missing)
        if child is ABSENT:
            break
        node = child
    guess = did_you_mean(missing, map(str, node)) if isinstance(node, dict) else ""
    fix = None if guess or override.action == "delete" else f"+{display_token(override.token)} to add it"
    what = f"cannot {override.action} '{dotted_path(override.path)}': it does not exist{guess}"
    return ConfigProblem(what, where=override.where, fix=fix)


def _apply(tree: Tree, override: Override) -> list[ConfigProblem]:
    """Apply one override to the tree, creating missing parent blocks, and return its problems."""
    node: Any = tree
    for depth, part in enumerate(override.path, start=1):
        key = _actual_key(node, part)
        if key is None:
            return [ConfigProblem(f"'{part}' is not an element of the list", where=override.where)]
        existing = lookup(node, (part,))
        if depth < len(override.path):
            if not isinstance(existing, dict | list):
                existing = node[key] = {}
            node = existing
    # `node`, `key` and `existing` are now the parent, the key and the value of the last part
    if override.action == "delete":
        if override.value is not None and override.value != existing:  # `~a=1` deletes only this value
            what = f"'{dotted_path(override.path)}' has another value"
            return [ConfigProblem(what, where=override.where, fix="leave '=…' out")]
        del node[key]
    elif isinstance(override.value, dict) and isinstance(existing, dict):
        merge_into(existing, override.value, root=tree)
    else:
        node[key] = copy_tree(override.value)
    return []


def _actual_key(node: Any, part: str) -> Any:
    """Return the key or index that `part` refers to, or None if a list has no such element.

    In a mapping, `a.1` may refer to the number 1, as YAML parsed it.
    """
    if isinstance(node, list):
        return int(part) if part.isdecimal() and int(part) < len(node) else None
    return part if part in node else next((key for key in node if str(key) == part), part)
