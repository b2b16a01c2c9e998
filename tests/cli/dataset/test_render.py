"""`gym dataset render`, typed as a user would."""

import json
from pathlib import Path

import pytest

from nemo_gym.cli.main import main


@pytest.fixture(autouse=True)
def _raw(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("prompt.yaml").write_text("system: Be brief.\nuser: |\n  Q: {q}\n  Say it.\n")
    Path("raw.jsonl").write_text("".join(json.dumps({"q": f"{number}?"}) + "\n" for number in range(5)))


def render(*words: str) -> int:
    return main(["dataset", "render", "-i", "raw.jsonl", "--prompt-config", "prompt.yaml", "-o", "o.jsonl", *words])


def test_the_first_rows_are_shown(capsys):
    """Users check the prompt at a glance."""
    assert render("--preview", "1") == 0

    assert capsys.readouterr().out == ("── row 1\nsystem\n  Be brief.\nuser\n  Q: 0?\n  Say it.\n\no.jsonl  5 rows\n")
    assert len(Path("o.jsonl").read_text().splitlines()) == 5


def test_json_has_the_preview_too(capsys):
    """Three rows are the default."""
    assert render("--json") == 0

    result = json.loads(capsys.readouterr().out)
    assert (result["rows"], len(result["preview"])) == (5, 3)


def test_rows_that_do_not_fit_are_reported_together(capsys):
    """One run must show the missing field and all its rows."""
    Path("raw.jsonl").write_text('{"q": 1}\n{"x": 1}\n{"x": 2}\n')

    assert render() == 1
    assert "lines 2–3: the row lacks the field 'q' of the template (it has: x)" in capsys.readouterr().err
    assert render("--json") == 1
    assert json.loads(capsys.readouterr().out)["rows_refused"] == 2


def test_missing_options_are_named_by_their_flags(capsys):
    """A usage error must name the flags to add."""
    assert main(["dataset", "render", "-i", "raw.jsonl"]) == 2

    message = capsys.readouterr().err
    assert "--prompt-config" in message
    assert "--output" in message
