"""A prompt turns a file of raw rows into rows that can be run."""

import json

import pytest

from nemo_gym.data.prompt import render
from nemo_gym.errors import ConfigError


@pytest.fixture
def prompt(tmp_path):
    path = tmp_path / "prompt.yaml"
    path.write_text("system: Be brief.\nuser: 'Q: {q}'\n")
    return path


def test_every_row_that_does_not_fit_is_reported_and_nothing_is_written(tmp_path, prompt):
    """The author needs lines, field and existing fields to repair rows or prompt."""
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    bad = ['{"question": 1}', '{"question": 2}', '{"q": 1', '{"q": 1, "responses_create_params": {"input": "x"}}']
    rows.write_text("\n".join(['{"q": "a"}', *bad]))
    out.write_text("earlier")

    result = render(rows, prompt, out)

    assert str(result.problems).splitlines()[:2] == [
        "lines 2–3: the row lacks the field 'q' of the template (it has: question)",
        "line 4: the line is not JSON: expecting ',' delimiter (first: at column 8)",
    ]
    assert "line 5: responses_create_params.input: the row already has an input" in str(result.problems)
    assert result.problems.rows == 4
    assert out.read_text() == "earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "prompt.yaml", "rows.jsonl"]


def test_the_first_rows_are_returned_as_a_preview(tmp_path, prompt):
    """A prompt can only be judged when it is filled in."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"q": str(number)}) + "\r\n" for number in range(9)))

    result = render(rows, prompt, tmp_path / "out.jsonl", preview=2)

    assert result.rows == 9
    assert [row["responses_create_params"]["input"][1]["content"] for row in result.preview] == ["Q: 0", "Q: 1"]
    assert result.preview[0] == json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])


def test_large_numbers_stay_exact(tmp_path, prompt):
    """An answer of thirty digits must not become a float."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"q": 123456789012345678901234567890}\n')

    (row,) = render(rows, prompt, tmp_path / "out.jsonl", preview=1).preview

    assert row["responses_create_params"]["input"][1]["content"] == "Q: 123456789012345678901234567890"
    assert "123456789012345678901234567890" in (tmp_path / "out.jsonl").read_text()


def test_the_rows_are_not_overwritten_by_themselves(tmp_path, prompt):
    """`-i x -o x` is a typing mistake that would destroy the input."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"q": 1}\n')

    with pytest.raises(ConfigError, match="would overwrite"):
        render(rows, prompt, rows)
