"""`gym env audit` reports its findings in a table, as JSON and in the README."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from nemo_gym.cli.main import main
from tests.authoring.audit_world import write_folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("nemo_gym.cli.env.audit", "nemo_gym.cli.env.test"):
        monkeypatch.setattr(importlib.import_module(name), "component_search_roots", lambda: [tmp_path])
    return tmp_path


def test_a_clean_server_is_one_line_and_its_readme_says_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The result is written between its marks; the rest of the README stays."""
    folder = write_folder(here)

    status = main(["env", "audit", "words", "--rows", "2", "--update-readme"])

    printed = capsys.readouterr().out
    assert status == 0
    assert "words" in printed
    assert "1 of 1 clean" in printed
    text = (folder / "README.md").read_text()
    assert "| the oracle scores full | 2 | 0 |" in text
    assert text.endswith("See tests.\n")


def test_every_offending_case_is_listed_and_the_status_is_1(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several servers at once; one that cannot be audited does not hide the others."""
    write_folder(here, name="good")
    write_folder(here, name="lenient", settings="      lenient: true\n")
    (write_folder(here, name="broken") / "audit.py").write_text("import nothing_like_this\n")

    status = main(["env", "audit", "--all", "--rows", "1"])

    printed, message = capsys.readouterr()
    lines = {line.split()[0]: line for line in printed.splitlines()[1:4]}
    assert status == 1
    assert lines["good"].endswith("clean")
    assert lines["lenient"].endswith("findings")
    assert lines["broken"].endswith("not audited")
    assert "silence" in printed
    assert "1 of 3 clean" in printed
    assert "nothing_like_this" in message
    assert "EXCUSED" in message


def test_json_is_the_only_output_on_stdout(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts parse it."""
    write_folder(here, settings="      lenient: true\n")

    status = main(["env", "audit", "words", "--json", "--rows", "1", "--seed", "4"])

    message = json.loads(capsys.readouterr().out)
    (server,) = message["servers"]
    assert status == 1
    assert message["passed"] is False
    assert (server["name"], server["rows"], server["seed"]) == ("words", 1, 4)
    assert server["cheats_paid"] == len([one for one in server["offences"] if one["check"] == "cheat"]) > 10


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        ([], 2, "needs either NAMEs or --all"),
        (["words", "--all"], 2, "needs either NAMEs or --all"),
        (["wrods"], 2, "try: resources_servers/words"),
        (["words", "--rows", "-1"], 2, "--rows"),
        (["words", "--rows", "51"], 1, "there are only 50 words"),
    ],
)
def test_bad_input_is_one_clear_error(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], status: int, expected: str
) -> None:
    """A usage error must never be a traceback."""
    write_folder(here)

    assert main(["env", "audit", *words]) == status
    message = capsys.readouterr().err
    assert expected in message
    assert "Traceback" not in message


def test_an_error_in_audit_py_is_reported_with_its_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its author must find the line."""
    (write_folder(here) / "audit.py").write_text("def oracle(row):\n    return row['nothing']\n")

    assert main(["env", "audit", "words"]) == 1
    assert "audit.py:2: KeyError: 'nothing'" in capsys.readouterr().err


def test_env_test_audits_too_without_no_audit(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One command for everything a folder promises."""
    folder = write_folder(here, settings="      lenient: true\n")
    (folder / "tests").mkdir()
    (folder / "tests" / "test_app.py").write_text("def test(): pass\n")
    (folder / "requirements.txt").write_text("-e nemo-gym[dev] @ ../../\n")

    off = main(["env", "test", "--resources-server", "words", "--json"])
    (verdict,) = json.loads(capsys.readouterr().out)
    without = main(["env", "test", "--resources-server", "words", "--no-audit", "--json"])
    (plain,) = json.loads(capsys.readouterr().out)

    assert (off, verdict["result"], verdict["audit"]["passed"]) == (1, "passed", False)
    assert (without, plain["result"], plain["audit"]) == (0, "passed", None)
