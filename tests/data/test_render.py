"""A file of raw rows and a prompt become rows that can be run."""

import json

import pytest

from nemo_gym.data.render import render
from nemo_gym.errors import ConfigError


@pytest.fixture
def prompt(tmp_path):
    path = tmp_path / "prompt.yaml"
    path.write_text("system: Be brief.\nuser: 'Q: {q}'\n")
    return path


def test_every_row_that_does_not_fit_is_told_and_nothing_is_written(tmp_path, prompt):
    """With the field, the lines and what exists."""
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    bad = ['{"question": 1}', '{"question": 2}', '{"q": 1', '{"q": 1, "responses_create_params": {"input": "x"}}']
    rows.write_text("\n".join(['{"q": "a"}', *bad]))
    out.write_text("earlier")

    found = render(rows, prompt, out)

    assert str(found.problems).splitlines()[:2] == [
        "lines 2–3: the template asks for 'q' (the row has: question)",
        "line 4: the line is not JSON: expecting ',' delimiter (first: at column 8)",
    ]
    assert "line 5: responses_create_params.input: the row already has an input" in str(found.problems)
    assert found.problems.rows == 4
    assert out.read_text() == "earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "prompt.yaml", "rows.jsonl"]


def test_the_first_rows_are_kept_to_be_shown(tmp_path, prompt):
    """A prompt is judged by how it looks filled in."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"q": str(number)}) + "\r\n" for number in range(9)))

    found = render(rows, prompt, tmp_path / "out.jsonl", preview=2)

    assert found.rows == 9
    assert [row["responses_create_params"]["input"][1]["content"] for row in found.preview] == ["Q: 0", "Q: 1"]
    assert found.preview[0] == json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])


def test_large_numbers_come_through(tmp_path, prompt):
    """An answer of thirty digits is an answer."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"q": 123456789012345678901234567890}\n')

    (row,) = render(rows, prompt, tmp_path / "out.jsonl", preview=1).preview

    assert row["responses_create_params"]["input"][1]["content"] == "Q: 123456789012345678901234567890"
    assert "123456789012345678901234567890" in (tmp_path / "out.jsonl").read_text()


def test_the_rows_are_not_overwritten_by_themselves(tmp_path, prompt):
    """`-i x -o x` is a slip."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"q": 1}\n')

    with pytest.raises(ConfigError, match="would be overwritten"):
        render(rows, prompt, rows)
