"""`gym env publish` asks everything at once, so that nothing is found only after others use it."""

import json
import sys
from pathlib import Path

import pytest

from nemo_gym.cli.main import main

READY = {
    "Say here in one sentence what is asked of the model and how the reply is graded.": "Repeat one word.",
    "whom to ask": "Ada Lovelace",
    "licensing: unknown": "licensing: Apache-2.0",
    "Say here what": "This is what",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder with a new environment, as it is generated."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["env", "init", "--environment", "to_publish"]) == 0
    capsys.readouterr()
    return tmp_path


def fill_in(here: Path) -> None:
    for path in (here / "environments/to_publish/manifest.yaml", here / "resources_servers/to_publish/README.md"):
        text = path.read_text()
        for old, new in READY.items():
            text = text.replace(old, new)
        path.write_text(text)


def test_a_new_environment_is_not_ready_and_says_why(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All reasons come together, so that one round of fixing is enough."""
    assert main(["env", "publish", "to_publish"]) == 1

    message = capsys.readouterr().err
    assert "environments/to_publish/manifest.yaml:7: still contains" in message
    assert "licensing is unknown" in message
    assert "resources_servers/to_publish/README.md:" in message
    assert "not ready: 4 problems" in message


def test_a_finished_environment_is_ready(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The check must be possible to pass."""
    fill_in(here)

    assert main(["env", "publish", "to_publish", "--json"]) == 0

    result = json.loads(capsys.readouterr().out)
    assert (result["ready"], result["problems"]) == (True, [])
    assert {case["kind"] for case in result["cases"]} >= {"full_reward", "zero_reward", "malformed"}


def test_a_case_with_another_reward_is_a_problem(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A verifier that contradicts its cases must not be published."""
    fill_in(here)
    cases = here / "resources_servers/to_publish/tests/verifier_cases.jsonl"
    cases.write_text(cases.read_text().replace('"expected_reward": 0.0', '"expected_reward": 1.0', 1))

    assert main(["env", "publish", "to_publish"]) == 1

    assert "case '" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "message"), [(["missing_one"], "missing_one"), ([], "gym env publish NAME")])
def test_an_unknown_name_is_a_usage_error(
    here: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts distinguish a wrong name from an environment that is not ready."""
    assert main(["env", "publish", *words]) == 2

    assert message in capsys.readouterr().err
