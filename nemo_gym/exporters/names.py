"""Names and values that MLflow accepts, made from any."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

LONGEST_NAME = 250
LONGEST_PARAMETER = 6000
LONGEST_TAG = 5000
ELISION = "___"

_REFUSED = re.compile(r"[^\w\-. :/]", re.ASCII)
_EMPTY_STEPS = re.compile(r"(?:^|(?<=/))(?:\.{0,2}/)+|(?:^|/)\.{1,2}$|/+$")


def mlflow_name(name: str) -> str:
    """`pass@1[avg-of-4]/accuracy` -> `pass_at_1_avg-of-4_/accuracy`; long names lose their middle."""
    plain = _REFUSED.sub("_", name.replace("@", "_at_"))
    return elided(_EMPTY_STEPS.sub("", plain) or "_", LONGEST_NAME)


def elided(text: str, longest: int) -> str:
    """`text`, or its beginning and end where it is too long."""
    if len(text) <= longest:
        return text
    kept = longest - len(ELISION)
    return text[: kept - kept // 2] + ELISION + text[len(text) - kept // 2 :]


def mlflow_names(names: Iterable[str]) -> dict[str, str]:
    """The MLflow name of each name; two that would become one are told apart by a number."""
    taken: set[str] = set()
    chosen: dict[str, str] = {}
    for name in names:
        wanted, number = mlflow_name(name), 2
        free = wanted
        while free in taken:
            ending = f"_{number}"
            free = wanted[: LONGEST_NAME - len(ending)] + ending
            number += 1
        taken.add(free)
        chosen[name] = free
    return chosen


def flattened(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf with its dotted path; an empty mapping is a leaf, a list with mappings in it is walked by index."""
    for key, value in tree.items():
        path = f"{above}{key}"
        below = value
        if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            below = {str(index): item for index, item in enumerate(value)}
        if isinstance(below, Mapping) and below:
            yield from flattened(below, f"{path}.")
        else:
            yield path, value
