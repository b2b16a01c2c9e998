"""Tokens by kind, problematic answers and tool errors over many rollouts."""

from typing import Any

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.metrics.answer_totals import AnswerTotals, describe_answers
from nemo_gym.metrics.prices import PriceTable
from nemo_gym.wire.stored_rollout import StoredRollout


def record(**changes: Any) -> dict[str, Any]:
    usage = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 40},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 5},
    }
    response = {"model": "m", "usage": usage, "output": [], **changes.pop("response", {})}
    return {"reward": 1.0, "response": response, **changes}


def test_tokens_are_summed_by_model_and_kind_over_all_attempts() -> None:
    """Failed attempts are paid for, too, and providers price the kinds differently."""
    totals = AnswerTotals()
    totals.add_scored(record())
    totals.add_scored(record(response={"model": "n"}))
    totals.add_tokens(StoredRollout(record(_ng_failure_class="timeout")))
    totals.add_tokens(StoredRollout({"_ng_failure_class": "timeout"}))

    one = {"input": 100, "cached": 40, "output": 20, "reasoning": 5}
    assert totals.fields()["tokens"] == {"m": {kind: 2 * count for kind, count in one.items()}, "n": one}


def test_answers_that_need_a_look_are_counted() -> None:
    """A low score because of a low token limit is not a bad model."""
    refusal = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    totals = AnswerTotals()
    totals.add_scored(record(response={"status": "incomplete"}, extracted_answer=None))
    totals.add_scored(record(response={"output": [refusal]}, extracted_answer="7"))
    totals.add_scored(record())
    totals.add_scored(record(extracted_answer=0))

    answers = totals.fields()["answers"]

    assert answers["truncated"] == answers["refused"] == {"count": 1, "share": 0.25}
    assert answers["not_extracted"] == {"count": 1, "share": pytest.approx(1 / 3)}  # of those with an extraction
    assert (
        describe_answers(totals.fields()) == "cut off 1 (25.0 %) · refused 1 (25.0 %) · no answer extracted 1 (33.3 %)"
    )
    assert describe_answers({"answers": None}) == ""


def test_equal_tool_errors_are_one_line() -> None:
    """A thousand exceptions of one line are one bug."""
    error = {"tool": "guess", "error": "KeyError", "at": "app.py:4"}
    totals = AnswerTotals()
    totals.add_scored(record(_ng_tool_errors=[error, error]))
    totals.add_scored(record(_ng_tool_errors=[{**error, "at": "app.py:9"}, "damaged"]))

    assert [(line["at"], line["count"]) for line in totals.fields()["tool_errors"]] == [
        ("app.py:4", 2),
        ("app.py:9", 1),
    ]


def test_the_cost_counts_cached_tokens_at_their_price() -> None:
    """Cached input is usually much cheaper; without a cached price it is not."""
    prices = PriceTable({"m": {"input": 2, "cached_input": 0.5, "output": 8}, "m*": {"input": 1, "output": 1}})

    assert prices.cost_of_record(record()) == pytest.approx((60 * 2 + 40 * 0.5 + 20 * 8) / 1e6)
    assert prices.cost_of_record(record(response={"model": "m-2026"})) == pytest.approx(120 / 1e6)
    assert prices.cost_of_record(record(response={"model": "x"})) is None
    assert prices.cost_of_record({}) == 0
    assert prices.total([("m", {"output": 1_000_000}), ("x", {"output": 1})]) == (8.0, ["x"])


@pytest.mark.parametrize("entry", [{"input": 1}, {"input": -1, "output": 1}, {"input": 1, "output": 1, "x": 1}, 3])
def test_a_price_that_cannot_be_used_is_refused(entry: object) -> None:
    """A misspelled key would make the cost too low."""
    with pytest.raises(ConfigError, match=r"prices\.m"):
        PriceTable({"m": entry})
