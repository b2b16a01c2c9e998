"""Captured calls survive crashes, several writers and bad lines."""

import fcntl
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.capture import store as store_module
from nemo_gym.capture.record import ModelCallRecord, build_model_call_record
from nemo_gym.capture.store import (
    CaptureStore,
    aggregate_model_call_metrics,
    clear_model_call_captures_for_rollouts,
    merge_model_call_capture_into_record,
    read_model_call_records,
)

TIMES = {"started_at": 1.0, "completed_at": 1.5, "latency_ms": 500.0, "latency_ttft_ms": 480.0}


def call(answer: bytes = b'{"id": "resp_1"}', **changes: Any) -> ModelCallRecord:
    defaults: dict[str, Any] = {
        "dialect": "responses",
        **TIMES,
        "request_body": b'{"input": "hi", "user": null}',
        "response_body": answer,
        "status_code": 200,
        "model_ref": "policy_model",
    }
    return build_model_call_record(**(defaults | changes))


def append_many(folder: str, start: int) -> None:
    store = CaptureStore(folder)
    for number in range(start, start + 25):
        store.append("0-0", call(model_call_id=f"mc_{number}"))


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    """The file is the only record of what the model saw; nothing may change on the way."""
    store = CaptureStore(tmp_path / "made" / "on demand")
    records = [call(model_call_id="mc_a"), call(b'{"usage": {"input_tokens": 3}, "n": 12345678901234567890123}')]

    for record in records:
        store.append("4-1", record)

    assert read_model_call_records(store, "4-1") == [
        ModelCallRecord.of(one, index) for index, one in enumerate(records)
    ]
    assert store.path_for("4-1").name == "4-1.capture.jsonl"
    assert not store.incomplete_path_for("4-1").exists()


def test_a_record_has_what_its_response_contains(tmp_path: Path) -> None:
    """Server folders count tokens and tool calls without knowing the dialect of the answer."""
    usage = {"input_tokens": 3, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 2}}
    output = [
        {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    ]
    store = CaptureStore(tmp_path)

    store.record(
        "0-0", {"dialect": "responses", "latency_ms": 5, "response": {"id": "r", "model": "m", "output": output}}
    )
    store.record("0-0", {"model_ref": "policy", "response": {"usage": usage, "status": "completed"}})

    first, second = read_model_call_records(store, "0-0")
    assert (first.call_index, first.response_id, first.model, first.reasoning_content) == (0, "r", "m", "hm")
    assert [call["name"] for call in first.tool_calls] == ["f"]
    assert (second.call_index, second.tokens_total, second.cache_hit, second.tool_calls) == (1, 7, True, [])
    assert second.model_ref is not None and second.model_ref.name == "policy"


def test_a_null_in_a_request_is_kept(tmp_path: Path) -> None:
    """A replayed request must be the request, not a tidied one."""
    store = CaptureStore(tmp_path)

    store.append("0-0", call())

    assert read_model_call_records(store, "0-0")[0].request == {"input": "hi", "user": None}


def test_a_torn_last_line_is_reported_as_a_gap_and_the_rest_is_read(tmp_path: Path) -> None:
    """A crash in the middle of a write costs that call, not the rollout's other calls."""
    store = CaptureStore(tmp_path)
    store.append("0-0", call(model_call_id="mc_whole"))
    with store.path_for("0-0").open("ab") as file:
        file.write(b'{"model_call_id": "mc_to')

    reading = store.read("0-0")

    assert [record.model_call_id for record in reading.records] == ["mc_whole"]
    assert [gap["code"] for gap in reading.gaps] == ["capture_torn_line"]


@pytest.mark.parametrize("torn", [b'{"model_', b"x" * 200_000], ids=["short", "longer than a block"])
@pytest.mark.parametrize("whole_lines", [0, 2])
def test_the_next_append_cuts_a_torn_line_off_and_says_so(tmp_path: Path, torn: bytes, whole_lines: int) -> None:
    """Two half lines glued together would be one unreadable line and two lost calls."""
    store = CaptureStore(tmp_path)
    for _ in range(whole_lines):
        store.append("0-0", call())
    with store.path_for("0-0").open("ab") as file:
        file.write(torn)

    store.append("0-0", call(model_call_id="mc_after"))

    reading = store.read("0-0")
    assert len(reading.records) == whole_lines + 1
    assert reading.records[-1].model_call_id == "mc_after"
    assert [gap["code"] for gap in reading.gaps] == ["capture_incomplete"]
    assert "torn" in reading.gaps[0]["detail"]


def test_a_line_that_is_not_a_call_is_a_gap(tmp_path: Path) -> None:
    """A damaged file still gives what it holds."""
    store = CaptureStore(tmp_path)
    store.append("0-0", call())
    with store.path_for("0-0").open("ab") as file:
        file.write(b'{"unrelated": 1}\nnot json\n')
    store.append("0-0", call())

    reading = store.read("0-0")

    assert len(reading.records) == 2
    assert [gap["detail"] for gap in reading.gaps] == [
        "0-0.capture.jsonl:2 is not a model call",
        "0-0.capture.jsonl:3 is not a model call",
    ]


def test_several_processes_append_to_one_rollout_without_mixing_lines(tmp_path: Path) -> None:
    """Workers of one model server share the file."""
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=append_many, args=(str(tmp_path), start)) for start in (0, 100)]

    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)

    reading = CaptureStore(tmp_path).read("0-0")
    assert {record.model_call_id for record in reading.records} == {
        f"mc_{number}" for number in [*range(25), *range(100, 125)]
    }
    assert not reading.gaps


def test_a_lock_that_is_never_released_is_an_error_not_a_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process must not stop the model server."""
    monkeypatch.setattr(store_module, "LOCK_TIMEOUT_S", 0.02)
    store = CaptureStore(tmp_path)
    store.append("0-0", call())

    with store.path_for("0-0").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match="locked"):
            store.append("0-0", call())

    assert len(store.read("0-0").records) == 1


@pytest.mark.parametrize("rollout_id", ["", "../0-0", "a/b", ".hidden", "a b", "0-0\n"])
def test_an_id_that_is_not_a_file_name_is_refused(tmp_path: Path, rollout_id: str) -> None:
    """The id comes from a URL; it must not reach outside the folder."""
    with pytest.raises(ValueError, match="not a rollout id"):
        CaptureStore(tmp_path).path_for(rollout_id)


def test_totals_add_up_over_dialects_and_leave_unknown_counts_unknown(tmp_path: Path) -> None:
    """Zero cached tokens and an unreported count are different facts."""
    store = CaptureStore(tmp_path)
    store.append("0-0", call(b'{"usage": {"input_tokens": 10, "output_tokens": 4, "total_tokens": 14}}'))
    store.append(
        "0-0",
        call(
            b'{"usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7,'
            b'"completion_tokens_details": {"reasoning_tokens": 1}, "prompt_tokens_details": null}}',
            dialect="chat",
        ),
    )
    store.append("0-0", call(b'{"usage": {"input_tokens": 1, "output_tokens": 1}}', dialect="messages"))
    store.append("0-0", call(b'"a refusal"', status_code=500))

    assert aggregate_model_call_metrics(store, "0-0") == {
        "tokens_in": 16,
        "tokens_out": 7,
        "tokens_reasoning": 1,
        "tokens_total": 23,
        "cached_tokens": None,
        "latency_total_ms": 2000.0,
        "num_calls": 4,
    }


def test_a_result_row_gains_the_calls_and_the_gaps(tmp_path: Path) -> None:
    """A reader of the row sees what was captured and whether it is complete."""
    store = CaptureStore(tmp_path)
    store.append("0-0", call(model_call_id="mc_1"))

    whole = merge_model_call_capture_into_record({"reward": 1.0}, store, "0-0")
    store.mark_incomplete("0-0", "the disk\nwas full")
    partial = merge_model_call_capture_into_record({"reward": 1.0}, store, "0-0")

    capture = whole["ng_model_call_capture"]
    assert whole["reward"] == 1.0
    assert (capture["rollout_id"], capture["metrics"]["num_calls"]) == ("0-0", 1)
    assert capture["calls"][0]["model_call_id"] == "mc_1"
    assert "gaps" not in capture
    assert partial["ng_model_call_capture"]["gaps"] == [{"code": "capture_incomplete", "detail": "the disk was full"}]


def test_a_rollout_without_captures_has_none(tmp_path: Path) -> None:
    """Observability may be switched on for a rollout that never reached its model."""
    row = merge_model_call_capture_into_record({}, CaptureStore(tmp_path), "9-9")

    assert row["ng_model_call_capture"]["calls"] == []
    assert row["ng_model_call_capture"]["metrics"]["num_calls"] == 0


def test_clearing_forgets_only_the_named_rollouts(tmp_path: Path) -> None:
    """A rollout that is run again starts with an empty file; its neighbours keep theirs."""
    store = CaptureStore(tmp_path)
    for rollout_id in ("0-0", "0-1"):
        store.append(rollout_id, call())
        store.mark_incomplete(rollout_id, "because")

    clear_model_call_captures_for_rollouts(store, ["0-0", "never-ran"])

    assert store.read("0-0").records == []
    assert not store.incomplete_path_for("0-0").exists()
    assert len(store.read("0-1").records) == 1
    assert store.incomplete_path_for("0-1").exists()
