"""Strange output of a model: every shipped environment scores it, and never better than a plain wrong answer."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_gym.authoring.audit import load_expectations
from nemo_gym.rollouts.outcome import Outcome, ScoredRollout
from tests.odd_output import Bench, bench_for

ROOT = Path(__file__).parents[1]
FOLDERS = sorted(
    path.parent for path in (ROOT / "resources_servers").glob("*/audit.py") if not path.parent.is_symlink()
)
EXAMPLES = 20

HALF_CHARACTERS = ["\\ud83d", "\\udc00x", "x\\uDBFF", "\\ud83d\\ud83d", "\\u0000", "\\ud800\\u0041"]
ODD_NUMBERS = [
    *("1e400", "-1e400", "NaN", "Infinity", "-Infinity", "1e-400", "-0.0", "1E+999999", "0x10", "1_000", "٣", "²"),
    *(f"{sign}1{'0' * zeros}" for sign in ("", "-") for zeros in (18, 19, 20, 100, 308, 309, 400, 5000)),
]
LEVELS = [60, 99, 150, 201, 260, 1100, 5000]

wordless_texts = st.text(st.characters(exclude_categories=["L", "N", "Cs"]), max_size=20)
odd_texts = st.one_of(st.sampled_from(HALF_CHARACTERS), wordless_texts.map(lambda text: json.dumps(text)[1:-1]))
leaves = st.one_of(
    odd_texts.map(lambda text: f'"{text}"'),
    st.sampled_from(ODD_NUMBERS),
    st.sampled_from(ODD_NUMBERS).map(lambda text: f'"{text}"'),
    st.sampled_from(["null", "true", "[]", "{}", '""', '"\\x"', "'zz'", "undefined", '"' + "y" * 100_000 + '"']),
)


def nest(leaf: str, levels: int, kind: str) -> str:
    opening, closing = ("[", "]") if kind == "list" else ('{"a":', "}")
    return opening * levels + leaf + closing * levels


values = st.one_of(leaves, st.builds(nest, leaves, st.sampled_from(LEVELS), st.sampled_from(["list", "object"])))
answers = st.one_of(
    st.builds(
        lambda form, value: form.replace("@", value),
        st.sampled_from(
            ["@", "\\boxed{@}", "Answer: @", "<answer>@</answer>", "```json\n[@]\n```", '{"x": @}', "```sql\n@\n```"]
        ),
        values,
    ),
    st.builds(lambda text, count: text * count, st.sampled_from(["(", "\\boxed{", "[", "\x00", "1/0 "]), st.just(3000)),
    st.text(st.characters(), max_size=30).filter(lambda text: not re.search(r"\w", text)),
)
"""Texts without letters or digits apart from the odd values: none of them can be right by chance."""


@st.composite
def tool_arguments(draw: st.DrawFn, tool: dict[str, Any]) -> str:
    """Draw the text of arguments: odd values where the tool's schema has parameters, or no object at all."""
    properties = (tool.get("parameters") or {}).get("properties") or {"x": {}}
    if draw(st.integers(0, 4)) == 0:
        return draw(values)
    pairs = []
    for name, schema in properties.items():
        value = draw(values)
        pairs.append(f"{json.dumps(name)}: {f'[{value}]' if schema.get('type') == 'array' else value}")
    pairs += draw(st.sampled_from([[], pairs[:1], [f'"\\ud83d": {draw(leaves)}']]))  # a duplicate, an odd key
    return f"{{{', '.join(pairs)}}}"


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda folder: folder.name)
def environment(request: pytest.FixtureRequest) -> Iterator[tuple[asyncio.Runner, Bench, float]]:
    """A bench for the environment, and the most that a plain wrong answer earns there."""
    folder = request.param
    with asyncio.Runner() as runner:
        serving = bench_for(folder)
        bench = runner.run(serving.__aenter__())
        tools = bench.row["responses_create_params"].get("tools") or ()
        scripts = [[], *([call(tool["name"], "{}")] for tool in tools)]
        plain = [runner.run(bench.play([*script, {"text": "xyzzy"}])) for script in scripts]
        assert all(isinstance(outcome, ScoredRollout) for outcome in plain), plain
        allowed = load_expectations(folder).most_for_a_cheat
        yield runner, bench, max(allowed, *(outcome.record["reward"] for outcome in plain))
        runner.run(serving.__aexit__(None, None, None))


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


def check(outcome: Outcome, most: float) -> None:
    assert isinstance(outcome, ScoredRollout), getattr(outcome, "failure", outcome)
    assert outcome.record["reward"] <= most


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(answer=answers)
def test_a_strange_answer_is_scored_as_wrong(environment: tuple[asyncio.Runner, Bench, float], answer: str) -> None:
    """An answer that fails the verifier leaves the mean, so a worse model would get fewer zeros."""
    runner, bench, most = environment

    check(runner.run(bench.play([{"text": answer}])), most)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_strange_arguments_are_an_error_for_the_model(
    environment: tuple[asyncio.Runner, Bench, float], data: st.DataObject
) -> None:
    """The model sees the error and the episode goes on: its mistake is not a failure of the agent."""
    runner, bench, most = environment
    tools = bench.row["responses_create_params"].get("tools") or [{"name": "no_such_tool"}]
    tool = data.draw(st.sampled_from(tools))
    arguments = data.draw(tool_arguments(tool))

    outcome = runner.run(bench.play([call(tool["name"], arguments), {"text": "xyzzy"}]))

    check(outcome, most)
    if bench.agent == "simple_agent":
        outputs = [item for item in outcome.record["response"]["output"] if item["type"] == "function_call_output"]
        assert len(outputs) == 1


def test_ten_megabytes_of_arguments_are_no_failure(environment: tuple[asyncio.Runner, Bench, float]) -> None:
    """A model that repeats itself until its limit makes the longest arguments of all."""
    runner, bench, most = environment
    tools = bench.row["responses_create_params"].get("tools") or [{"name": "no_such_tool"}]
    arguments = json.dumps({"x": "a" * 10_000_000})

    check(runner.run(bench.play([call(tools[0]["name"], arguments), {"text": "xyzzy"}])), most)


@pytest.mark.parametrize("name", ["", "..", ".", "a/b", "verify", "\ud83d", "x" * 100_000, "seed_session", "?", "%2e"])
def test_a_strange_tool_name_is_an_error_for_the_model(
    environment: tuple[asyncio.Runner, Bench, float], name: str
) -> None:
    """A model may invent any name; it must not reach an endpoint that is not a tool, nor end the episode."""
    runner, bench, most = environment

    check(runner.run(bench.play([call(name, '{"a": 1}'), {"text": "xyzzy"}])), most)
