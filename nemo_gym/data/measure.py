"""What is measured about the rows of a dataset, under the names its metrics file gives it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import orjson

from nemo_gym.data.check import Request, Settings, separators
from nemo_gym.data.lines import Row
from nemo_gym.data.numbers import Distinct, Lengths, Numbers, Statistics
from nemo_gym.data.tokens import token_counter
from nemo_gym.keys import RESPONSES_CREATE_PARAMS_KEY_NAME as PARAMS

EXAMPLES = "Number of examples"
TOOLS = "Number of tools"
WORDS = "Json-dumped number of words (proxy for token count)"
TOKENS = "Input length in OpenAI tokens"
TURNS = "Number of turns"
UNIQUE_PARAMS = "Number of unique create params"
UNIQUE_USER = "Number of unique user messages"
SAMPLING = {
    "temperature": "Temperature",
    "top_p": "Top p",
    "max_output_tokens": "Max output tokens",
    "max_tool_calls": "Max tool calls",
    "top_logprobs": "Top logprobs",
}
"""Sampling parameter -> what its statistics are called."""

SPOKEN = ("text", "output_text", "arguments", "output", "content", "summary", "refusal", "name")
"""Fields of an item, and of its parts, whose text the model reads."""

MOST_TEXTS = 1024
"""Texts of instructions whose length is remembered."""

NUMBER = (int, float)

_SPACES = re.compile(rb" +")

Report: TypeAlias = dict[str, int | Statistics]
_Part = TypeVar("_Part", Numbers, Lengths, Distinct, "Texts")


class Texts:
    """How many texts a field held, and how many different ones."""

    __slots__ = ("different", "total")

    def __init__(self) -> None:
        self.different = Distinct()
        self.total = 0

    def add(self, text: str, times: int = 1) -> None:
        self.total += times
        self.different.add(text)

    def merge(self, other: "Texts") -> None:
        self.total += other.total
        self.different.merge(other.different)

    def statistics(self) -> Statistics:
        return {"unique_count": len(self.different), "total_count": self.total}


class Metrics:
    """Everything measured about some rows. Parts of a file are measured apart and merged."""

    def __init__(self) -> None:
        self.examples = 0
        self.tools = Lengths()
        self.words = Lengths()
        self.tokens = Lengths()
        self.turns = Lengths()
        self.params = Distinct()
        self.user_messages = Distinct()
        self.sampling: dict[str, Numbers] = {}
        self.numbers: dict[str, Numbers] = {}
        self.texts: dict[str, Texts] = {}

    def merge(self, other: "Metrics") -> None:
        """Measure all that `other` measured."""
        self.examples += other.examples
        for mine, theirs in ((self.tools, other.tools), (self.words, other.words), (self.tokens, other.tokens)):
            mine.merge(theirs)
        self.turns.merge(other.turns)
        self.params.merge(other.params)
        self.user_messages.merge(other.user_messages)
        _merge_named(self.sampling, other.sampling)
        _merge_named(self.numbers, other.numbers)
        _merge_named(self.texts, other.texts)

    def report(self) -> Report:
        """The figures by name, as they are written to the metrics file."""
        figures: Report = {
            EXAMPLES: self.examples,
            TOOLS: self.tools.statistics(),
            WORDS: self.words.statistics(),
        }
        if self.tokens.seen or not self.examples:
            figures[TOKENS] = self.tokens.statistics()
        figures |= {
            TURNS: self.turns.statistics(),
            UNIQUE_PARAMS: len(self.params),
            UNIQUE_USER: len(self.user_messages),
        }
        for name, title in SAMPLING.items():
            figures[title] = self.sampling.get(name, Numbers()).statistics()
        fields: Report = {}
        for name in dict.fromkeys((*self.numbers, *self.texts)):
            parts = [part[name].statistics() for part in (self.numbers, self.texts) if name in part]
            fields[name] = {key: value for part in parts for key, value in part.items()}
        return figures | {name: value for name, value in fields.items() if name not in figures}


@dataclass(slots=True)
class _Use:
    """How often the rows of a chunk had the same settings, and what is the same about all of them."""

    settings: Settings
    known_by: int
    words: int
    tokens: int
    times: int = 0


class Meter:
    """Adds rows to metrics. What comes back on every row, settings and instructions, is measured once."""

    def __init__(self) -> None:
        self._count = token_counter()
        self._lengths: dict[str, int] = {}
        self._metrics = Metrics()
        self._uses: dict[int, _Use] = {}

    def add(self, row: Row, request: Request, times: int) -> None:
        """Measure a row that stands for `times` equal ones."""
        metrics, given = self._metrics, request.input
        use = self._uses.get(id(request.settings)) or self._used(request.settings)
        use.times += times
        metrics.examples += times
        written = orjson.dumps(given, option=orjson.OPT_SORT_KEYS)
        metrics.params.add(b"%d %b" % (use.known_by, written))
        gaps, tokens, turns = self._asked(given)
        metrics.words.add(use.words + gaps + spaces(written), times)
        if self._count is not None:
            metrics.tokens.add(use.tokens + tokens, times)
        metrics.turns.add(turns, times)
        for name, value in row.items():
            if type(value) is str:
                _named(metrics.texts, name, Texts).add(value, times)
            elif name != PARAMS:
                self._add_field(name, value, times)

    def take(self) -> Metrics:
        """What was measured since the last time."""
        taken, self._metrics = self._metrics, Metrics()
        for use in self._uses.values():
            values = use.settings.values
            if "tools" in values:
                taken.tools.add(len(values["tools"]), use.times)
            for name in SAMPLING:
                if values.get(name) is not None:
                    _named(taken.sampling, name, Numbers).add(values[name], use.times)
        self._uses.clear()
        return taken

    def _used(self, settings: Settings) -> _Use:
        """The same object as long as it is used: its holder keeps it alive, so its id is its own."""
        # json.dumps writes '{"input": ' and a comma and a colon for each further parameter.
        words = 2 + 2 * len(settings.values) + settings.separators + spaces(settings.written)
        tokens = 0
        if self._count is not None:
            for text in (settings.values.get("instructions"), settings.values.get("tools")):
                if text:
                    tokens += self._recalled(text if isinstance(text, str) else orjson.dumps(text).decode())
        use = self._uses[id(settings)] = _Use(settings, hash(settings.written), words, tokens)
        return use

    def _asked(self, given: Any) -> tuple[int, int, int]:
        """Commas and colons between the parts of an input, its tokens, and how often the user speaks in it."""
        count, different = self._count, self._metrics.user_messages
        if type(given) is str:
            different.add(given)
            return 0, 0 if count is None else count(given), 1
        gaps, tokens, turns = max(len(given) - 1, 0), 0, 0
        for item in given:
            content, role = item.get("content"), item.get("role")
            simplest = len(item) == 2 and type(content) is str
            gaps += 3 if simplest else separators(item)
            if count is not None:
                tokens += count(content) if simplest and role == "user" else self._item_tokens(item)
            if role == "user":
                turns += 1
                different.add(content if type(content) is str else orjson.dumps(content, option=orjson.OPT_SORT_KEYS))
        return gaps, tokens, turns

    def _add_field(self, name: str, value: Any, times: int) -> None:
        for part in value if isinstance(value, list) else (value,):
            if isinstance(part, str):
                _named(self._metrics.texts, name, Texts).add(part, times)
            elif isinstance(part, NUMBER):
                _named(self._metrics.numbers, name, Numbers).add(part, times)

    def _item_tokens(self, item: Mapping[str, Any]) -> int:
        content = item.get("content")
        if type(content) is not str:
            return self._spoken(item)
        assert self._count is not None
        return self._count(content) if item.get("role") == "user" else self._recalled(content)

    def _spoken(self, value: Any) -> int:
        if isinstance(value, str):
            assert self._count is not None
            return self._count(value)
        if isinstance(value, list):
            return sum(map(self._spoken, value))
        if isinstance(value, Mapping):
            return sum(self._spoken(value[name]) for name in SPOKEN if name in value)
        return 0

    def _recalled(self, text: str) -> int:
        """The length of a text that is likely to come back."""
        known = self._lengths.get(text)
        if known is None:
            assert self._count is not None
            if len(self._lengths) >= MOST_TEXTS:
                self._lengths.clear()
            known = self._lengths[text] = self._count(text)
        return known


def spaces(written: bytes) -> int:
    """How many gaps the texts in some JSON (written without spaces of its own) have.

    Together with one gap after each comma and colon they part the words of `json.dumps`: white space of every other
    kind is escaped there.
    """
    return written.count(b" ") if b"  " not in written else len(_SPACES.findall(written))


def _named(parts: dict[str, _Part], name: str, kind: type[_Part]) -> _Part:
    part = parts.get(name)
    if part is None:
        part = parts[name] = kind()
    return part


def _merge_named(mine: dict[str, _Part], theirs: dict[str, _Part]) -> None:
    for name, part in theirs.items():
        _named(mine, name, type(part)).merge(part)
