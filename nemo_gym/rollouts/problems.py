"""What is wrong with the rows of a dataset, gathered so that it can be told together."""

from collections.abc import Iterable
from difflib import get_close_matches

from nemo_gym.errors import ConfigError

LISTED_LINES = 10
LISTED_AGENTS = 10


class InputRowsError(ConfigError, ValueError):
    """Rows of a dataset that cannot be sent as they are; every kind of problem and its lines in one message."""


class Agents:
    """The agents there are, for rows that name one."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(names)
        self._problems: dict[str, str | None] = dict.fromkeys(self._names)

    def problem(self, name: str) -> str | None:
        """What is wrong with naming this agent, and which one may be meant; None when it is there."""
        if name not in self._problems:
            if len(self._problems) - len(self._names) >= LISTED_AGENTS:
                return "there are still other agents named that do not exist"
            self._problems[name] = f"there is no agent {name!r}{self._advice(name)}"
        return self._problems[name]

    def _advice(self, name: str) -> str:
        if not self._names:
            return ", nor any other"
        close = get_close_matches(name, self._names, n=1)
        if close:
            return f" — did you mean {close[0]!r}?"
        listed = ", ".join(self._names[:LISTED_AGENTS]) + (", …" if len(self._names) > LISTED_AGENTS else "")
        return f", only {listed}"


class Problems:
    """What is wrong with which lines; the text stays short however many there are."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._lines: dict[str, list[int]] = {}
        self._counts: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def note(self, problem: str, number: int) -> None:
        self._counts[problem] = self._counts.get(problem, 0) + 1
        listed = self._lines.setdefault(problem, [])
        if len(listed) < LISTED_LINES:
            listed.append(number)

    def raise_if_any(self) -> None:
        if not self._counts:
            return
        texts = []
        for problem, count in self._counts.items():
            listed = ", ".join(map(str, self._lines[problem])) + (", …" if count > LISTED_LINES else "")
            texts.append(f"{problem} ({count} {'row' if count == 1 else 'rows'}: line {listed})")
        raise InputRowsError("; ".join(texts), where=self._source)
