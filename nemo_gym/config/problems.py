"""Problems of a configuration, each with its location and its fix, raised together as one error."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from nemo_gym.config.secret_text import mask_text
from nemo_gym.errors import ConfigError

KeyPath: TypeAlias = tuple[str | int, ...]
"""The path of a value: keys and list indices, starting at the top of the tree."""


@dataclass(frozen=True)
class ConfigProblem:
    """One problem. `path` identifies the value; its location `where` (file:line:column) is looked up later."""

    what: str
    path: KeyPath | None = None
    fix: str | None = None
    where: str | None = None
    kind: type[ConfigError] = field(default=ConfigError)
    is_warning: bool = False

    def without_secrets(self) -> "ConfigProblem":
        """Return a copy with every known secret masked."""
        what, where, fix = (None if text is None else mask_text(text) for text in (self.what, self.where, self.fix))
        return replace(self, what=what or "", where=where, fix=fix)

    def __str__(self) -> str:
        return str(self.kind(self.what, where=self.where, fix=self.fix))


def raise_all(problems: Sequence[ConfigProblem]) -> None:
    """Raise one error that lists every problem; return if there are only warnings.

    The error has the class of the first problem, so that callers can catch, for example, `ServerRefNotFoundError`.
    """
    errors = dict.fromkeys(problem.without_secrets() for problem in problems if not problem.is_warning)
    if not errors:
        return
    first = next(iter(errors))
    if len(errors) == 1:
        raise first.kind(first.what, where=first.where, fix=first.fix)
    texts = [f"{number}. {problem}".replace("\n", "\n   ") for number, problem in enumerate(errors, start=1)]
    raise first.kind(f"{len(errors)} problems in the configuration\n  " + "\n  ".join(texts))


def dotted_path(path: KeyPath) -> str:
    """Return a path as text: `a.b[0].c`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def nearest_names(name: str, candidates: Iterable[str], *, n: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the candidates most similar to `name`, best first."""
    names = sorted({candidate for candidate in candidates if candidate != name})
    if len(name) > 200 or len(names) > 5000:  # comparing would take too long
        return []
    return difflib.get_close_matches(name, names, n=n, cutoff=cutoff)


def did_you_mean(name: str, candidates: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return " — did you mean 'x'?" with the nearest candidate, or an empty text."""
    return "".join(f" — did you mean '{close}'?" for close in nearest_names(name, candidates, cutoff=cutoff))
