"""Measure the rows of a dataset, and compare the metrics with the metrics file next to it."""

import importlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import orjson

from nemo_gym.catalog.rows import RequestSettings, Row, RowRequest, count_separators
from nemo_gym.data.running_statistics import DistinctCounter, NumberStats, Statistics, length_statistics
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
MetricsState: TypeAlias = Literal["new", "same", "completed", "conflict"]
"""`completed`: the values in the file are equal, and the new metrics have additional ones."""


@cache
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


class FieldStats:
    """The statistics of a field of the rows: of its numbers, and of its texts."""

    __slots__ = ("distinct_texts", "numbers", "texts")

    def __init__(self) -> None:
        self.numbers = NumberStats()
        self.texts = 0
        self.distinct_texts = DistinctCounter()

    def add(self, value: str | float, times: int) -> None:
        if isinstance(value, str):
            self.texts += times
            self.distinct_texts.add(value)
        else:
            self.numbers.add(value, times)

    def merge(self, other: "FieldStats") -> None:
        self.numbers.merge(other.numbers)
        self.texts += other.texts
        self.distinct_texts.merge(other.distinct_texts)

    def statistics(self) -> Statistics:
        """Return the statistics of the numbers and of the texts, if there are any."""
        statistics = self.numbers.statistics() if self.numbers.count else {}
        if self.texts:
            statistics |= {"unique_count": len(self.distinct_texts), "total_count": self.texts}
        return statistics


class Metrics:
    """The metrics of a set of rows; metrics of parts of a file can be merged."""

    def __init__(self) -> None:
        self.examples = 0
        self.tools: Counter[int] = Counter()
        """Number of rows by number of tools; the next three count rows by words, tokens and turns."""
        self.words: Counter[int] = Counter()
        self.tokens: Counter[int] = Counter()
        self.turns: Counter[int] = Counter()
        self.params = DistinctCounter()
        self.user_messages = DistinctCounter()
        self.sampling = {name: NumberStats() for name in SAMPLING}
        self.fields: defaultdict[str, FieldStats] = defaultdict(FieldStats)

    def merge(self, other: "Metrics") -> None:
        """Add the measurements of `other`."""
        self.examples += other.examples
        self.tools += other.tools
        self.words += other.words
        self.tokens += other.tokens
        self.turns += other.turns
        self.params.merge(other.params)
        self.user_messages.merge(other.user_messages)
        for name, numbers in other.sampling.items():
            self.sampling[name].merge(numbers)
        for name, stats in other.fields.items():
            self.fields[name].merge(stats)

    def report(self) -> Report:
        """Return the metrics by name, as in the metrics file."""
        figures: Report = {
            EXAMPLES: self.examples,
            TOOLS: length_statistics(self.tools),
            WORDS: length_statistics(self.words),
        }
        if self.tokens or not self.examples:  # without a tokenizer, rows have no token counts
            figures[TOKENS] = length_statistics(self.tokens)
        figures |= {
            TURNS: length_statistics(self.turns),
            UNIQUE_PARAMS: len(self.params),
            UNIQUE_USER: len(self.user_messages),
        }
        for name, title in SAMPLING.items():
            figures[title] = self.sampling[name].statistics()
        for name, stats in sorted(self.fields.items(), key=lambda item: not item[1].numbers.count):  # numbers first
            figures.setdefault(name, stats.statistics())
        return figures


@dataclass(slots=True)
class _MeasuredSettings:
    """The measurements that all rows with the same settings share, and the number of such rows since `take`."""

    settings: RequestSettings
    settings_hash: int
    words: int
    tokens: int
    times: int = 0


class MetricsCollector:
    """Measures rows. Settings and instructions, which are the same in most rows, are measured once."""

    def __init__(self) -> None:
        counter = token_counter()
        self._has_tokenizer = counter is not None
        self._count_tokens: Callable[[str], int] = counter or (lambda _text: 0)
        self._cached_token_count = lru_cache(maxsize=MAX_CACHED_TEXTS)(self._count_tokens)
        """Counts the tokens of texts that many rows are likely to share."""
        self._metrics = Metrics()
        self._measured: dict[int, _MeasuredSettings] = {}
        """By the id of the settings."""

    def add(self, row: Row, request: RowRequest, times: int) -> None:
        """Measure a row that occurs `times` times."""
        metrics = self._metrics
        shared = self._measured.get(id(request.settings)) or self._measure_settings(request.settings)
        shared.times += times
        metrics.examples += times
        encoded = orjson.dumps(request.input, option=orjson.OPT_SORT_KEYS)
        metrics.params.add(b"%d %b" % (shared.settings_hash, encoded))
        separators, tokens, turns = self._measure_input(request.input)
        metrics.words[shared.words + separators + count_gaps(encoded)] += times
        if self._has_tokenizer:
            metrics.tokens[shared.tokens + tokens] += times
        metrics.turns[turns] += times
        for name, value in row.items():
            if name != PARAMS:
                for part in value if isinstance(value, list) else (value,):
                    if isinstance(part, str | int | float):
                        metrics.fields[name].add(part, times)

    def take(self) -> Metrics:
        """Return the metrics of the rows since the last call of `take`."""
        metrics, self._metrics = self._metrics, Metrics()
        for shared in self._measured.values():
            values = shared.settings.values
            if "tools" in values:
                metrics.tools[len(values["tools"])] += shared.times
            for name, numbers in metrics.sampling.items():
                if values.get(name) is not None:
                    numbers.add(values[name], shared.times)
        self._measured.clear()
        return metrics

    def _measure_settings(self, settings: RequestSettings) -> _MeasuredSettings:
        """Measure settings and cache the result under `id(settings)`.

        The cached result references `settings`, so the id is not reused.
        """
        # `{"input": …}` has two words in json.dumps; the comma and the colon of each further parameter add two.
        words = 2 + 2 * len(settings.values) + settings.separators + count_gaps(settings.encoded)
        instructions, tools = settings.values.get("instructions"), settings.values.get("tools")
        tokens = self._cached_token_count(instructions or "")
        if tools:
            tokens += self._cached_token_count(orjson.dumps(tools).decode())
        measured = _MeasuredSettings(settings, hash(settings.encoded), words, tokens)
        self._measured[id(settings)] = measured
        return measured

    def _measure_input(self, items: Any) -> tuple[int, int, int]:
        """Add the user messages of an input to the metrics; return its number of separators, tokens, user messages."""
        user_messages = self._metrics.user_messages
        if isinstance(items, str):
            user_messages.add(items)
            return 0, self._count_tokens(items), 1
        separators, tokens, user_turns = max(len(items) - 1, 0), 0, 0
        for item in items:
            content, role = item.get("content"), item.get("role")
            separators += count_separators(item)
            if not isinstance(content, str):
                tokens += self._text_tokens(item)
            else:  # system messages are often the same in many rows
                tokens += self._count_tokens(content) if role == "user" else self._cached_token_count(content)
            if role == "user":
                user_turns += 1
                user_messages.add(
                    content if isinstance(content, str) else orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
                )
        return separators, tokens, user_turns

    def _text_tokens(self, value: Any) -> int:
        """Count the tokens of all texts in a value that are part of the model's input."""
        if isinstance(value, str):
            return self._count_tokens(value)
        if isinstance(value, list):
            return sum(map(self._text_tokens, value))
        if isinstance(value, Mapping):
            return sum(self._text_tokens(value[name]) for name in TEXT_FIELDS if name in value)
        return 0


def count_gaps(encoded: bytes) -> int:
    """Count the runs of spaces in compact JSON: they are inside its texts.

    `json.dumps` also writes a space after each separator (comma or colon) and escapes all other white space. So the
    runs of spaces and the separators together are the gaps between the words of its result.
    """
    return encoded.count(b" ") if b"  " not in encoded else len(_SPACES.findall(encoded))


# -- the metrics file next to a dataset --------------------------------------------------------------------------------


def compare_metrics(path: Path, metrics: Mapping[str, Any]) -> tuple[MetricsState, list[str], dict[str, Any]]:
    """Compare the file at `path` with new metrics; return state, differences and the new content of the file."""
    content = dict(metrics)
    if not path.exists():
        return "new", [], content
    try:
        existing = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        return "conflict", [f"the file is not JSON: {error}"], content
    if not isinstance(existing, dict):
        return "conflict", ["the file is not a JSON object"], content
    if TOKENS in existing and TOKENS not in content:  # keep the counts of a machine that has the tokenizer
        content[TOKENS] = existing[TOKENS]
    changes = list(differences(existing, content))
    if changes:
        return "conflict", changes, content
    return ("completed" if content.keys() - existing.keys() else "same"), [], content


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Yield every value of `old` that is different or missing in `new`; additions are not differences."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in old.items():
            key_path = f"{path}: {key}" if path else str(key)
            if key not in new:
                yield f"{key_path}: was {_shorten(value)}, is missing"
            else:
                yield from differences(value, new[key], key_path)
    elif not _is_equal(old, new):
        yield f"{path}: was {_shorten(old)}, is {_shorten(new)}"


def encode_metrics(metrics: Mapping[str, Any]) -> bytes:
    """Encode metrics as the content of a metrics file."""
    return orjson.dumps(metrics, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _is_equal(old: Any, new: Any) -> bool:
    """Return whether two values are equal, up to the rounding of floats and the order of lists."""
    if _is_number(old) and _is_number(new) and (isinstance(old, float) or isinstance(new, float)):
        # A number equals its rounding to two decimals, or to three if it is below 1.
        return bool(old == new or abs(old - new) <= (5e-3 if abs(old) >= 1 else 5e-4))
    if isinstance(old, list) and isinstance(new, list):
        return Counter(map(_encode, old)) == Counter(map(_encode, new))
    return type(old) is type(new) and bool(old == new)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _encode(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _shorten(value: Any) -> str:
    text = _encode(value).decode()
    return text if len(text) <= 80 else f"{text[:79]}…"
