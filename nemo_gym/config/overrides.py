"""Command-line overrides: Hydra's own grammar, applied to plain data.

`+a.b=1` adds, `++a.b=1` adds or replaces, `a.b=1` replaces what is there, `~a.b` deletes. "What is there" means the
merged configuration, files included.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from nemo_gym.config.merge import Tree, copied, lookup, merge_into
from nemo_gym.config.problems import Problem, did_you_mean, dotted, raise_all
from nemo_gym.config.secrets import MASK, is_secret_name, mask_text
from nemo_gym.config.yaml_text import MAX_DEPTH

MAX_TOKEN_CHARACTERS = 64 * 1024
_ABSENT: Any = object()
_TEXT = r'"[A-Za-z0-9_./:@+-]*"'
_KEY = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
PLAIN = re.compile(rf"(\+\+?)({_KEY})=(true|false|{_TEXT}|\[{_TEXT}(?:, ?{_TEXT})*\])", re.ASCII)
"""Overrides that JSON and Hydra read alike."""


@dataclass(frozen=True)
class Override:
    """One command-line token, understood."""

    token: str = field(repr=False)
    action: Literal["add", "force", "change", "delete"]
    path: tuple[str, ...]
    value: Any = field(default=None, repr=False)

    @property
    def where(self) -> str:
        return f"override '{shown_token(self.token)}'"


def shown_token(token: str) -> str:
    """The token as it may be printed: no secret, and not the whole of a very long one."""
    key, equals, value = token.partition("=")
    if equals and value and is_secret_name(key.rpartition(".")[2]):
        return f"{key}={MASK}"
    text = mask_text(token).encode("utf-8", "replace").decode()
    return text if len(text) <= 200 else text[:200] + "…"


def parse_overrides(tokens: Sequence[str]) -> list[Override]:
    """Read every token; all unreadable ones are reported together."""
    if not tokens:
        return []
    problems: list[Problem] = []
    overrides: list[Override] = []
    read: Any = None
    for token in tokens:
        found = _refusal(token) or _plain(token)
        if found is None:
            read = read or _reader()
            found = read(token)
        if isinstance(found, Problem):
            problems.append(found)
        elif found.path[0] != "hydra":  # settings of Hydra's own runner, which is not used
            overrides.append(found)
    raise_all(problems)
    return overrides


def _refusal(token: str) -> Problem | None:
    """What is wrong with a token before its grammar is looked at."""
    where = f"override '{shown_token(token)}'"
    if len(token) > MAX_TOKEN_CHARACTERS:
        return Problem(f"is longer than {MAX_TOKEN_CHARACTERS:,} characters", where=where, fix="put it in a YAML file")
    if any("\ud800" <= character <= "\udfff" for character in token):
        return Problem("is not valid UTF-8 text", where=where)
    depth = deepest = 0
    for character in token:
        depth += (character in "[{") - (character in "]}")
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        return Problem(f"nested more than {MAX_DEPTH} levels deep", where=where, fix="put it in a YAML file")
    if token.startswith("-"):
        return Problem("is not an override", where=where, fix="overrides look like +key=value")
    return None


def _plain(token: str) -> Override | None:
    """A token without anything special in it, such as our own flags make: no need to load Hydra for those."""
    plain = PLAIN.fullmatch(token)
    if plain is None:
        return None
    sign, key, value = plain.groups()
    return Override(token, "force" if sign == "++" else "add", tuple(key.split(".")), json.loads(value))


def _reader() -> Any:
    """Hydra's parser, loaded only when there is something it alone can read."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()

    def read(token: str) -> Override | Problem:
        try:
            parsed = parser.parse_rule(token, "override")
            return _understood(token, parsed)
        except HydraException as error:
            return _unreadable(token, str(error), error.__cause__)
        except RecursionError:
            return _unreadable(token, "nested too deep", None)
        except (ValueError, TypeError, AttributeError, OverflowError) as error:  # from casts such as int(…)
            return _unreadable(token, str(error), None)

    return read


def _understood(token: str, parsed: Any) -> Override | Problem:
    where = f"override '{shown_token(token)}'"
    key = parsed.key_or_group
    if parsed.package is not None or "/" in key:
        return Problem("config groups are not used here", where=where, fix="write dotted keys: +a.b=value")
    path = tuple(key.split("."))
    if not all(path):
        return Problem("has no key before '='", where=where, fix="overrides look like +key=value")
    if parsed.is_sweep_override():
        fix = f"{token.partition('=')[0]}=[a,b] for a list, or quote text that holds commas"
        return Problem("gives several values, separated by commas", where=where, fix=fix)
    actions: dict[str, Literal["add", "force", "change", "delete"]]
    actions = {"ADD": "add", "FORCE_ADD": "force", "CHANGE": "change", "DEL": "delete"}
    return Override(token, actions[parsed.type.name], path, copied(parsed.value()))


def _unreadable(token: str, reason: str, cause: BaseException | None) -> Problem:
    reason = reason.splitlines()[0] if reason else "not in Hydra's override grammar"
    shown = shown_token(token)
    if MASK in shown or len(reason) > 200:
        reason = "not in Hydra's override grammar"
    column = getattr(cause, "startIndex", None)
    if column is None:
        column = getattr(getattr(cause, "offendingToken", None), "column", None)
    if column is None and "<EOF>" in reason:
        column = len(token)
    pointer = f"\n    {shown}\n    {' ' * column}^" if isinstance(column, int) and shown == token else ""
    place = f"override '{shown}'" + (f", column {column + 1}" if isinstance(column, int) else "")
    fix = "quote a value with spaces or special characters: '+key=\"a b\"'" if "=" in token else "write +key=value"
    return Problem(f"cannot be read: {reason}{pointer}", where=place, fix=fix)


def apply_overrides(overrides: Sequence[Override]) -> tuple[Tree, list[Override]]:
    """The tree the overrides build by themselves, and those that wait for the files they change."""
    tree: Tree = {}
    waiting: list[Override] = []
    problems: list[Problem] = []
    for override in overrides:
        present = lookup(tree, override.path, default=_ABSENT)
        if override.action in ("change", "delete") and present is _ABSENT:
            waiting.append(override)
        elif override.action == "add" and not _may_add(present, override.value):
            key = dotted(override.path)
            problems.append(Problem(f"'{key}' is given twice", where=override.where, fix=f"++{key}=… to replace it"))
        else:
            problems.extend(_apply(tree, override))
    raise_all(problems)
    return tree, waiting


def apply_waiting(tree: Tree, waiting: Sequence[Override], *, strict: bool) -> None:
    """Change or delete what the files brought. With `strict`, something that is not there is an error."""
    problems: list[Problem] = []
    for override in waiting:
        if lookup(tree, override.path, default=_ABSENT) is not _ABSENT:
            problems.extend(_apply(tree, override))
        elif strict:
            problems.append(_nothing_there(tree, override))
    raise_all(problems)


def _may_add(present: Any, value: Any) -> bool:
    return present is _ABSENT or present is None or isinstance(value, dict | list)


def _nothing_there(tree: Tree, override: Override) -> Problem:
    key = dotted(override.path)
    prefixes = (override.path[:length] for length in range(1, len(override.path) + 1))
    depth = len(next(prefix for prefix in prefixes if lookup(tree, prefix, default=_ABSENT) is _ABSENT))
    parent = lookup(tree, override.path[: depth - 1])
    names = [str(name) for name in parent] if isinstance(parent, dict) else []
    guess = did_you_mean(override.path[depth - 1], names)
    fix = None if guess or override.action == "delete" else f"+{shown_token(override.token)} to add it"
    return Problem(f"there is no '{key}' to {override.action}{guess}", where=override.where, fix=fix)


def _apply(tree: Tree, override: Override) -> list[Problem]:
    *parents, last = override.path
    node: Any = tree
    for part in parents:
        step = lookup(node, (part,), default=None)
        if not isinstance(step, dict | list):
            step = {}
            if not _put(node, part, step):
                return [Problem(f"'{part}' is not in the list", where=override.where)]
        node = step
    if override.action == "delete":
        return _delete(node, last, override)
    present = lookup(node, (last,), default=None)
    if isinstance(override.value, dict) and isinstance(present, dict):
        merge_into(present, override.value, root=tree)
    elif not _put(node, last, override.value):
        return [Problem(f"'{last}' is not an element of the list", where=override.where)]
    return []


def _put(node: Any, part: str, value: Any) -> bool:
    if isinstance(node, dict):
        node[_actual_key(node, part)] = copied(value)
        if isinstance(value, dict):
            node[_actual_key(node, part)] = value
        return True
    if part.isdecimal() and int(part) < len(node):
        node[int(part)] = value
        return True
    return False


def _actual_key(node: Tree, part: str) -> Any:
    """The key as YAML read it: `a.1` means the entry 1 of a mapping with numbers for keys."""
    return part if part in node else next((key for key in node if str(key) == part), part)


def _delete(node: Any, last: str, override: Override) -> list[Problem]:
    present = lookup(node, (last,))
    if override.value is not None and override.value != present:
        return [Problem(f"'{dotted(override.path)}' has another value", where=override.where, fix="leave '=…' out")]
    if isinstance(node, list):
        del node[int(last)]
    else:
        del node[_actual_key(node, last)]
    return []
