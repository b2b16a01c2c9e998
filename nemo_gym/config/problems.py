"""What is wrong with a configuration, as many things at once as there are, each with its place and its cure."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from nemo_gym.errors import ConfigError

Path: TypeAlias = tuple[str | int, ...]
"""The way to a value: keys and list indices from the top of the tree."""


@dataclass(frozen=True)
class Problem:
    """One thing to repair. `path` says which value; `where` (file:line:column) is looked up when it is reported."""

    what: str
    path: Path | None = None
    fix: str | None = None
    where: str | None = None
    kind: type[ConfigError] = field(default=ConfigError)
    is_warning: bool = False
    """Worth telling, not worth stopping for."""

    def __str__(self) -> str:
        return str(self.kind(self.what, where=self.where, fix=self.fix))


def raise_all(problems: Sequence[Problem]) -> None:
    """Raise one error that tells everything, or return if nothing is worse than a warning.

    The error has the class of the first problem, so that callers who wait for a `ServerRefNotFoundError` get one.
    """
    unique = list(dict.fromkeys(problem for problem in problems if not problem.is_warning))
    if not unique:
        return
    first = unique[0]
    if len(unique) == 1:
        raise first.kind(first.what, where=first.where, fix=first.fix)
    texts = [f"{number}. {problem}".replace("\n", "\n   ") for number, problem in enumerate(unique, start=1)]
    raise first.kind(f"{len(unique)} problems in the configuration\n  " + "\n  ".join(texts))


def dotted(path: Path) -> str:
    """`a.b[0].c`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def nearest(name: str, candidates: Iterable[str], *, n: int = 1, cutoff: float = 0.6) -> list[str]:
    """The candidates that look most like `name`, best first."""
    names = sorted({candidate for candidate in candidates if candidate != name})
    if len(name) > 200 or len(names) > 5000:  # comparing would take longer than reading the message
        return []
    return difflib.get_close_matches(name, names, n=n, cutoff=cutoff)


def did_you_mean(name: str, candidates: Iterable[str], *, cutoff: float = 0.6) -> str:
    """— did you mean 'x'?, or nothing."""
    found = nearest(name, candidates, cutoff=cutoff)
    return f" — did you mean '{found[0]}'?" if found else ""
