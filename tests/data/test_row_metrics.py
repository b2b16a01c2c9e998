"""Rows are measured under the names of the contract, and no split of the rows changes the result."""

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.catalog.rows import RowChecker
from nemo_gym.config.schema_datasets import DatasetConfig
from nemo_gym.data import row_metrics
from nemo_gym.data.row_metrics import (
    EXAMPLES,
    TOKENS,
    TURNS,
    UNIQUE_PARAMS,
    UNIQUE_USER,
    WORDS,
    Metrics,
    MetricsCollector,
    compare_metrics,
    token_counter,
)
from nemo_gym.data.running_statistics import AVERAGE, COUNT

ROOT = Path(__file__).resolve().parents[2]

CONTENT = st.text(alphabet=st.sampled_from('ab \u00a0\u2003\t\n"\\é'), max_size=6)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "assistant"]), "content": CONTENT}), max_size=3
)
ROWS = st.fixed_dictionaries(
    {
        "responses_create_params": st.fixed_dictionaries(
            {"input": CONTENT | MESSAGES},
            optional={
                "instructions": CONTENT,
                "temperature": st.sampled_from([0.0, 0.1, 0.7, 1]),
                "metadata": st.dictionaries(CONTENT, CONTENT, max_size=2),
                "tools": st.lists(st.just({"type": "function", "name": "f", "description": "a  b c"}), max_size=2),
            },
        )
    },
    optional={
        "answer": st.integers(0, 3) | CONTENT | st.lists(CONTENT | st.floats(0, 1), max_size=2),
        "ok": st.booleans(),
    },
)


def measure(rows, times: int = 1) -> Metrics:
    checker, meter = RowChecker(), MetricsCollector()
    for row in rows:
        request = checker.parse_request(row)
        assert request is not None
        meter.add(row, request, times)
    return meter.take()


def row_of(items, **more):
    return {"responses_create_params": {"input": items, **more}}


@settings(max_examples=100, deadline=None)
@given(ROWS)
def test_words_are_those_of_json_dumps(row):
    """Metrics files of other tools count words that way."""
    words = len(json.dumps(row["responses_create_params"]).split())

    assert measure([row]).words == {words: 1}


@settings(max_examples=60, deadline=None)
@given(st.lists(ROWS, max_size=8), st.data())
def test_any_split_of_the_rows_measures_the_same(rows, data):
    """The number of processes must not change the metrics."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    merged = Metrics()

    for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        merged.merge(pickle.loads(pickle.dumps(measure(rows[start:end]))))

    assert merged.report() == measure(rows).report()


@settings(max_examples=40, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=4), st.integers(1, 3))
def test_a_repeated_dataset_is_measured_as_if_written_out(rows, times):
    """num_repeats changes every count and every deviation, as a written-out dataset would."""
    assert measure(rows, times).report() == measure(rows * times).report()


def test_every_figure_of_the_contract_is_reported():
    """Reviewers of a dataset rely on examples, turns, unique parameters and messages, and every sampling parameter."""
    sampling = {"temperature": 0.5, "top_p": 0.9, "max_output_tokens": 7, "max_tool_calls": 2, "top_logprobs": 1}
    report = measure(
        [
            row_of("hi", **sampling),
            row_of("hi", **sampling),
            row_of([{"role": "user", "content": "hi"}]),
        ]
    )

    figures = report.report()

    assert figures[EXAMPLES] == 3
    assert figures[UNIQUE_PARAMS] == 2
    assert figures[UNIQUE_USER] == 1
    assert figures[TURNS][AVERAGE] == 1
    for title, value in zip(row_metrics.SAMPLING.values(), sampling.values(), strict=True):
        assert (figures[title][COUNT], figures[title][AVERAGE]) == (2, value)


def test_tools_are_counted_only_where_they_are_given():
    """An empty list of tools is a choice, a missing one is not."""
    report = measure([row_of("x"), row_of("x", tools=[])]).report()

    assert report["Number of tools"][COUNT] == 1


def test_other_fields_are_numbers_or_texts_and_lists_of_them():
    """Authors add any fields; a field with both kinds of values is described as both."""
    rows = [
        row_of("x") | {"n": 1, "t": "a", "mixed": "a", "many": [1, 2.5], "names": ["a", "b", "a"], "deep": {"a": 1}},
        row_of("x") | {"n": True, "t": "a", "mixed": 3, "many": [], "names": [None, ["c"]], "deep": None},
    ]

    report = measure(rows).report()

    assert report["n"] == {
        "Total # non-null values": 2,
        "Average": 1.0,
        "Min": 1.0,
        "Max": 1.0,
        "Standard deviation": 0.0,
    }
    assert report["t"] == {"unique_count": 1, "total_count": 2}
    assert report["many"][AVERAGE] == 1.75
    assert report["names"] == {"unique_count": 2, "total_count": 3}
    assert report["mixed"] == {**report["mixed"], "unique_count": 1, "total_count": 1, COUNT: 1}
    assert "deep" not in report


def test_a_field_named_like_a_figure_does_not_hide_it():
    """Readers of a metrics file expect the figure under its name."""
    assert measure([row_of("x") | {EXAMPLES: "many"}]).report()[EXAMPLES] == 1


class TestTokens:
    """With the tokenizer of the extra `data`."""

    @pytest.fixture(autouse=True)
    def _tokenizer(self):
        pytest.importorskip("splintr")
        self.count = token_counter()

    def tokens(self, row) -> int:
        ((length, _),) = measure([row]).tokens.items()
        return length

    def test_a_text_is_as_long_as_the_tokenizer_says(self):
        """The numbers must equal those on an endpoint's bill."""
        assert self.tokens(row_of("The quick brown fox")) == 4

    def test_instructions_tools_and_every_text_of_the_input_are_read(self):
        """All of them take space in the context."""
        tool = {"type": "function", "name": "f", "description": "Look it up."}
        items = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "What is it?"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "It is late."},
        ]
        read = [
            "Be brief.",
            "What is it?",
            "f",
            "{}",
            "It is late.",
            "Answer!",
            json.dumps([tool], separators=(",", ":")),
        ]

        tokens = self.tokens(row_of(items, instructions="Answer!", tools=[tool]))

        assert tokens == sum(map(self.count, read))

    def test_pictures_are_not_counted_as_text(self):
        """A data URL of a megabyte is not a million tokens."""
        picture = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 1000}

        assert self.tokens(row_of([{"role": "user", "content": [picture]}])) == 0

    def test_repeated_instructions_are_counted_on_every_row(self, monkeypatch):
        """Neither a cached length nor an emptied cache may change the result."""
        monkeypatch.setattr(row_metrics, "MAX_CACHED_TEXTS", 2)
        rows = [
            row_of([{"role": "system", "content": "a " * (n % 5)}, {"role": "user", "content": "b"}]) for n in range(20)
        ]

        merged = measure(rows).tokens

        assert sum(length * times for length, times in merged.items()) == sum(map(self.tokens, rows))


def test_without_the_tokenizer_everything_else_is_measured(monkeypatch):
    """The tokenizer is optional."""
    monkeypatch.setattr(row_metrics, "token_counter", lambda: None)

    report = measure([row_of("a b")]).report()

    assert TOKENS not in report
    assert report[WORDS][AVERAGE] == 3


SHIPPED = sorted(ROOT.glob("resources_servers/*/data/example_metrics.json"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.parts[-3])
def test_the_shipped_metrics_are_those_of_the_shipped_rows(path):
    """Metrics that describe earlier rows would mislead a reviewer."""
    rows = [json.loads(line) for line in path.with_name("example.jsonl").read_text().splitlines()]
    shipped = json.loads(path.read_text())
    dataset = {name: shipped[name] for name in DatasetConfig.model_fields if name in shipped}

    state, differences, _ = compare_metrics(path, dataset | measure(rows).report())

    assert shipped[EXAMPLES] == len(rows)
    assert state in ("same", "completed"), differences
