"""On a terminal the same facts, and no text of a model that the terminal would obey."""

import json
from pathlib import Path

import pytest

from nemo_gym.cli.main import main
from nemo_gym.view.terminal import escape_terminal_codes
from tests.view.records import failure, record, write


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def print_view(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["view", "--text", *words]) == 0
    return capsys.readouterr().out


def test_a_run_is_printed_as_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Remote shells have no browser."""
    output = write(tmp_path / "rollouts.jsonl", record(0), record(1, reward=0.0))
    write(tmp_path / "rollouts_failures.jsonl", failure(2))

    text = print_view(capsys, str(output))

    assert "mean reward  0.5 " in text
    assert "failed: timeout" in text
    assert "too slow" in text
    assert "What is" not in print_view(capsys, str(output), "--failed")


def test_the_error_of_a_failed_rollout_has_a_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Below "extracted" it would look like an answer of the model; without failures there is no empty column."""
    output = write(tmp_path / "rollouts.jsonl", record(0))
    assert " error" not in print_view(capsys, str(output))
    write(tmp_path / "rollouts_failures.jsonl", failure(2))

    header, failed = [
        line for line in print_view(capsys, str(output)).splitlines() if "extracted" in line or "too slow" in line
    ]

    assert failed.index("too slow") == header.index("error") > header.index("extracted")


def test_one_rollout_is_printed_completely(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reading a rollout must not need a browser."""
    output = write(tmp_path / "rollouts.jsonl", record(0, 0, answer="first"), record(0, 1, answer="second"))

    assert "second" in print_view(capsys, str(output), "0:1")
    both = print_view(capsys, str(output), "0")
    assert "first" in both and "second" in both
    assert main(["view", "--text", str(output), "5"]) == 1


def test_programs_get_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts read the same facts."""
    output = write(tmp_path / "rollouts.jsonl", record(0), record(1, reward=0.0))

    [lines] = json.loads(print_view(capsys, str(output), "--json", "--where", "reward < 1"))

    assert [row["task"] for row in lines["rollouts"]] == [1]


def test_the_old_command_finds_the_file_by_its_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`ng_viewer +jsonl_fpath=…`, as the first README said."""
    output = write(tmp_path / "rollouts.jsonl", record(0))

    assert "mean reward" in print_view(capsys, f"+jsonl_fpath={output}")


@pytest.mark.parametrize("words", [[], ["/nowhere/x.jsonl"]])
def test_a_wrong_path_is_one_clear_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped path is the most frequent mistake."""
    assert main(["view", *words]) in (1, 2)

    assert capsys.readouterr().err.startswith("Error: ")


@pytest.mark.parametrize("text", ["\x1b[2J", "\x1b]0;title\x07", "a\rb", "\u202egnorw", "\x9b31m", "\u2066x"])
def test_nothing_a_terminal_would_obey_gets_through(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An answer must not be able to clear the screen, set the title or turn a line around."""
    output = write(tmp_path / "rollouts.jsonl", record(0, answer=text, extracted_answer=text))

    message = print_view(capsys, str(output)) + print_view(capsys, str(output), "0:0")

    assert not set(message) & set("\x1b\x07\r\x9b\u202e\u2066")
    assert "\\x" in escape_terminal_codes(text)


@pytest.mark.parametrize("flags", [["--where", "reward < 1"], ["--failed"]])
def test_a_filter_without_text_or_export_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    """The page would show every rollout, as if the filter matched them all."""
    output = write(tmp_path / "rollouts.jsonl", record(0))

    assert main(["view", str(output), *flags]) == 2
    assert "--text or --export" in capsys.readouterr().err
