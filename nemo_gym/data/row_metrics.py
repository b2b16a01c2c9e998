"""Measure the rows of a dataset; metrics have the names of the metrics file."""

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import orjson

from nemo_gym.catalog.rows import RequestSettings, Row, RowRequest, count_separators
from nemo_gym.data.running_statistics import DistinctCounter, LengthHistogram, NumberStats, Statistics
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
"""Sampling parameter -> name of its statistics."""

TEXT_FIELDS = ("text", "output_text", "arguments", "output", "content", "summary", "refusal", "name")
"""Fields of an item, and of its parts, whose text is part of the model's input."""

MAX_CACHED_TEXTS = 1024
"""Maximum number of texts whose token count is cached."""
TOKEN_BYTES = 4
"""Bytes of a token id in `encode_flat`."""
NO_TOKENIZER_NOTE = "input lengths in tokens are missing: splintr-rs is not installed (pip install 'nemo-gym[data]')"

_SPACES = re.compile(rb" +")

Report: TypeAlias = dict[str, int | Statistics]
_Part = TypeVar("_Part", NumberStats, LengthHistogram, DistinctCounter, "TextStats")


@lru_cache(maxsize=1)
def token_counter() -> Callable[[str], int] | None:
    """Return a function that counts the OpenAI tokens (o200k) of a text; None without the extra `data`."""
    try:
        splintr = importlib.import_module("splintr")
    except ImportError:
        return None
    tokenizer = splintr.Tokenizer.from_pretrained("o200k_base")
    encode_flat: Callable[[str], bytes] = tokenizer.encode_flat
    encode_ordinary: Callable[[str], list[int]] = tokenizer.encode_ordinary

    def count(text: str) -> int:
        # In a prompt, "<|endoftext|>" is text; the faster `encode_flat` would encode it as one special token.
        return len(encode_ordinary(text)) if "<|" in text else len(encode_flat(text)) // TOKEN_BYTES

    return count


class TextStats:
    """The number of texts of a field, and the number of distinct ones."""

    __slots__ = ("distinct", "total")

    def __init__(self) -> None:
        self.distinct = DistinctCounter()
        self.total = 0

    def add(self, text: str, times: int = 1) -> None:
        self.total += times
        self.distinct.add(text)

    def merge(self, other: "TextStats") -> None:
        self.total += other.total
        self.distinct.merge(other.distinct)

    def statistics(self) -> Statistics:
        return {"unique_count": len(self.distinct), "total_count": self.total}


class Metrics:
    """The metrics of a set of rows; metrics of parts of a file can be merged."""

    def __init__(self) -> None:
        self.examples = 0
        self.tools = LengthHistogram()
        self.words = LengthHistogram()
        self.tokens = LengthHistogram()
        self.turns = LengthHistogram()
        self.params = DistinctCounter()
        self.user_messages = DistinctCounter()
        self.sampling: dict[str, NumberStats] = {}
        self.numbers: dict[str, NumberStats] = {}
        self.texts: dict[str, TextStats] = {}

    def merge(self, other: "Metrics") -> None:
        """Add the measurements of `other`."""
        self.examples += other.examples
        self.tools.merge(other.tools)
        self.words.merge(other.words)
        self.tokens.merge(other.tokens)
        self.turns.merge(other.turns)
        self.params.merge(other.params)
        self.user_messages.merge(other.user_messages)
        _merge_by_name(self.sampling, other.sampling)
        _merge_by_name(self.numbers, other.numbers)
        _merge_by_name(self.texts, other.texts)

    def report(self) -> Report:
        """Return the metrics by name, as in the metrics file."""
        figures: Report = {
            EXAMPLES: self.examples,
            TOOLS: self.tools.statistics(),
            WORDS: self.words.statistics(),
        }
        if self.tokens.counts or not self.examples:
            figures[TOKENS] = self.tokens.statistics()
        figures |= {
            TURNS: self.turns.statistics(),
            UNIQUE_PARAMS: len(self.params),
            UNIQUE_USER: len(self.user_messages),
        }
        for name, title in SAMPLING.items():
            figures[title] = self.sampling.get(name, NumberStats()).statistics()
        fields: Report = {}
        for name in dict.fromkeys((*self.numbers, *self.texts)):
            parts = [part[name].statistics() for part in (self.numbers, self.texts) if name in part]
            fields[name] = {key: value for part in parts for key, value in part.items()}
        return figures | {name: value for name, value in fields.items() if name not in figures}


@dataclass(slots=True)
class _SettingsUse:
    """The measurements that all rows with the same settings share, and the number of such rows in a chunk."""

    settings: RequestSettings
    settings_hash: int
    words: int
    tokens: int
    times: int = 0


class MetricsCollector:
    """Measures rows. Settings and instructions, which are the same in most rows, are measured once."""

    def __init__(self) -> None:
        self._count_tokens = token_counter()
        self._token_cache: dict[str, int] = {}
        self._metrics = Metrics()
        self._uses: dict[int, _SettingsUse] = {}

    def add(self, row: Row, request: RowRequest, times: int) -> None:
        """Measure a row that is repeated `times` times."""
        metrics = self._metrics
        use = self._uses.get(id(request.settings)) or self._measure_settings(request.settings)
        use.times += times
        metrics.examples += times
        encoded = orjson.dumps(request.input, option=orjson.OPT_SORT_KEYS)
        metrics.params.add(b"%d %b" % (use.settings_hash, encoded))
        separators, tokens, turns = self._measure_input(request.input)
        metrics.words.add(use.words + separators + count_gaps(encoded), times)
        if self._count_tokens is not None:
            metrics.tokens.add(use.tokens + tokens, times)
        metrics.turns.add(turns, times)
        for name, value in row.items():
            if type(value) is str:
                _get_or_create(metrics.texts, name, TextStats).add(value, times)
            elif name != PARAMS:
                self._add_field(name, value, times)

    def take(self) -> Metrics:
        """Return the metrics of the rows since the last call of `take`."""
        metrics, self._metrics = self._metrics, Metrics()
        for use in self._uses.values():
            values = use.settings.values
            if "tools" in values:
                metrics.tools.add(len(values["tools"]), use.times)
            for name in SAMPLING:
                if values.get(name) is not None:
                    _get_or_create(metrics.sampling, name, NumberStats).add(values[name], use.times)
        self._uses.clear()
        return metrics

    def _measure_settings(self, settings: RequestSettings) -> _SettingsUse:
        """Measure settings and cache the result under `id(settings)`.

        The cached result references `settings`, so the id is not reused.
        """
        # Gaps between words in json.dumps: two for `{"input": `, two for the comma and colon of each further parameter.
        words = 2 + 2 * len(settings.values) + settings.separators + count_gaps(settings.encoded)
        tokens = 0
        if self._count_tokens is not None:
            for text in (settings.values.get("instructions"), settings.values.get("tools")):
                if text:
                    tokens += self._cached_tokens(text if isinstance(text, str) else orjson.dumps(text).decode())
        use = self._uses[id(settings)] = _SettingsUse(settings, hash(settings.encoded), words, tokens)
        return use

    def _measure_input(self, items: Any) -> tuple[int, int, int]:
        """Count the separators between the parts of an input, its tokens and its user messages."""
        count, user_messages = self._count_tokens, self._metrics.user_messages
        if type(items) is str:
            user_messages.add(items)
            return 0, 0 if count is None else count(items), 1
        separators, tokens, turns = max(len(items) - 1, 0), 0, 0
        for item in items:
            content, role = item.get("content"), item.get("role")
            is_bare = len(item) == 2 and type(content) is str
            separators += 3 if is_bare else count_separators(item)
            if count is not None:
                tokens += count(content) if is_bare and role == "user" else self._item_tokens(item)
            if role == "user":
                turns += 1
                user_messages.add(
                    content if type(content) is str else orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
                )
        return separators, tokens, turns

    def _add_field(self, name: str, value: Any, times: int) -> None:
        """Measure a field: its texts and numbers, also inside a list."""
        for part in value if isinstance(value, list) else (value,):
            if isinstance(part, str):
                _get_or_create(self._metrics.texts, name, TextStats).add(part, times)
            elif isinstance(part, int | float):
                _get_or_create(self._metrics.numbers, name, NumberStats).add(part, times)

    def _item_tokens(self, item: Mapping[str, Any]) -> int:
        """Count the tokens of an item; those of system messages are cached."""
        content = item.get("content")
        if type(content) is not str:
            return self._text_tokens(item)
        assert self._count_tokens is not None
        return self._count_tokens(content) if item.get("role") == "user" else self._cached_tokens(content)

    def _text_tokens(self, value: Any) -> int:
        """Count the tokens of all texts in a value that are part of the model's input."""
        if isinstance(value, str):
            assert self._count_tokens is not None
            return self._count_tokens(value)
        if isinstance(value, list):
            return sum(map(self._text_tokens, value))
        if isinstance(value, Mapping):
            return sum(self._text_tokens(value[name]) for name in TEXT_FIELDS if name in value)
        return 0

    def _cached_tokens(self, text: str) -> int:
        """Count the tokens of a text that is likely to be repeated."""
        tokens = self._token_cache.get(text)
        if tokens is None:
            assert self._count_tokens is not None
            if len(self._token_cache) >= MAX_CACHED_TEXTS:
                self._token_cache.clear()
            tokens = self._token_cache[text] = self._count_tokens(text)
        return tokens


def count_gaps(encoded: bytes) -> int:
    """Count the runs of spaces in the texts of compact JSON.

    `json.dumps` also writes a space after each comma and colon, and escapes all other white space: both numbers
    together are the number of gaps between its words.
    """
    return encoded.count(b" ") if b"  " not in encoded else len(_SPACES.findall(encoded))


def _get_or_create(parts: dict[str, _Part], name: str, kind: type[_Part]) -> _Part:
    part = parts.get(name)
    if part is None:
        part = parts[name] = kind()
    return part


def _merge_by_name(target: dict[str, _Part], source: dict[str, _Part]) -> None:
    for name, part in source.items():
        _get_or_create(target, name, type(part)).merge(part)
