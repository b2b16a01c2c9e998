"""Schemas of task fields, and rows as tasks."""

from pathlib import Path

import pytest

from nemo_gym.task_data import (
    TaskDataSchemaError,
    TaskDataValidator,
    load_task_data_schema,
    normalize_task_fields,
    validate_jsonl_rows,
)
from nemo_gym.task_materialization import materialize_task

SCHEMA = """
from pydantic import BaseModel, ConfigDict, Field

class TaskData(BaseModel):
    model_config = ConfigDict(extra="allow")
    expected_answer: str
    level: int = Field(default=1, json_schema_extra={"legacy_location": "verifier_metadata"})
"""
PARAMS = {"responses_create_params": {"input": "?"}, "agent_ref": {"name": "a"}, "_ng_task_index": 0}


def test_a_typing_error_in_a_row_is_reported_with_its_key(tmp_path: Path) -> None:
    """A verifier would silently use its default for a misspelt field."""
    (tmp_path / "task_data.py").write_text(SCHEMA)
    adapter = load_task_data_schema(tmp_path)
    assert adapter is not None
    validator = TaskDataValidator("sums", adapter, "rows.jsonl")

    validator.validate_row(0, {**PARAMS, "expected_answer": "4", "verifier_metadata": {"level": 2}})
    assert validator.report.clean
    validator.validate_row(1, {**PARAMS, "expected_anser": "4", "level": 3})

    report = validator.report
    assert (report.rows, report.error_rows, report.unknown_keys) == (2, 1, {"expected_anser"})
    assert report.misplaced_keys == {"level"}
    assert "row 1: expected_answer: Field required" in report.summary()
    assert validate_jsonl_rows("sums", adapter, "rows.jsonl", [{"expected_answer": "4"}]).clean


def test_a_field_in_two_places_with_two_values_is_a_conflict() -> None:
    """Which of them the verifier reads depends on its code."""
    row = {**PARAMS, "a": 1, "verifier_metadata": {"a": 2, "b": 3}, "task_data": {"b": 3}}

    assert normalize_task_fields(row) == ({"a": 1, "b": 3}, ["a"])


def test_a_folder_without_a_schema_has_none_and_a_broken_one_is_one_error(tmp_path: Path) -> None:
    """A broken schema must not pass as "no schema"."""
    assert load_task_data_schema(tmp_path) is None
    (tmp_path / "task_data.py").write_text("import nothing_like_this\n")
    with pytest.raises(TaskDataSchemaError, match="nothing_like_this"):
        load_task_data_schema(tmp_path)


def test_a_row_becomes_a_task_with_an_identity() -> None:
    """The same task must be found again in another run."""
    row = {**PARAMS, "problem_id": "p7", "question": "?"}

    task = materialize_task(row, taskset="sums")

    assert task["task_id"] == {"taskset": "sums", "task_id": "p7"}
    assert set(task["task_input"]) == {"responses_create_params", "problem_id", "question"}
    assert task["agent_ref"] == {"name": "a"}
    assert materialize_task({"q": 1}, taskset="t", task_index=4)["task_id"]["task_id"] == "4"
    with pytest.raises(ValueError, match="has none of"):
        materialize_task({"q": 1}, taskset="t")
