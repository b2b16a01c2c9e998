"""`gym env test` runs the tests, cases and audits of server folders and reports their results."""

import importlib
import json
import sys
import textwrap
from pathlib import Path

import pytest

from nemo_gym.cli.env.test import choose_shard
from nemo_gym.cli.main import main
from nemo_gym.errors import ConfigError
from nemo_gym.launch import venv_build
from nemo_gym.launch.folder_tests import FolderTests, data_problems, find_folder_tests, needs_examples, outcome_of_exit


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(importlib.import_module("nemo_gym.cli.env.test"), "component_search_roots", lambda: [tmp_path])
    return tmp_path


def write_folder(
    root: Path, name: str, test: str | None, *, kind: str = "resources_servers", readme: bool = True
) -> Path:
    folder = root / kind / name
    (folder / "tests").mkdir(parents=True)
    (folder / "app.py").write_text("ANSWER = 42\n")
    (folder / "requirements.txt").write_text("-e nemo-gym[dev] @ ../../\n")
    if test is not None:
        (folder / "tests" / "test_app.py").write_text(textwrap.dedent(test))
    if readme:
        (folder / "README.md").write_text("# x\n")
    return folder


def write_data(folder: Path) -> None:
    data = folder / "data"
    data.mkdir()
    for name in ("example.jsonl", "example_rollouts.jsonl"):
        (data / name).write_text("{}\n" * 5)
    (data / "example_metrics.json").write_text('{"Number of examples": 5}')


def test_every_documented_folder_is_tested_and_reported(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One table for the whole tree: what passed, what failed, what has no tests, whose data is incomplete."""
    good = "import app, os\ndef test(): assert app.ANSWER == 42 and os.getcwd().endswith('good')\n"
    write_data(write_folder(here, "good", good))
    write_data(write_folder(here, "bad", "def test(): assert False\n"))
    write_folder(here, "untested", None, kind="responses_api_agents")
    write_folder(here, "undocumented", "def test(): assert False\n", readme=False)
    monkeypatch.setenv("GYM_CI_JUNIT_DIR", str(here / "junit"))

    status = main(["env", "test", "--json"])

    verdicts = json.loads(capsys.readouterr().out)
    assert status == 1
    assert [(v["name"], v["result"], v["data_problems"]) for v in verdicts] == [
        ("resources_servers/bad", "failed", []),
        ("resources_servers/good", "passed", []),
        ("responses_api_agents/untested", "missing", None),
    ]
    assert (here / "junit" / "resources_servers__good.xml").exists()


@pytest.mark.parametrize(("test", "status"), [("def test(): pass\n", 0), ("def test(): assert 0\n", 1), (None, 5)])
def test_one_folder_gives_pytests_own_status(here: Path, test: str | None, status: int) -> None:
    """Scripts around us tell a failed test from a missing one."""
    write_folder(here, "one", test)

    assert main(["env", "test", "+entrypoint=resources_servers/one"]) == status


@pytest.mark.parametrize(("settings", "status"), [(None, 0), ("[pytest]\nasyncio_mode = strict\n", 1)])
def test_async_tests_without_a_mark_run_unless_settings_say_otherwise(
    here: Path, settings: str | None, status: int
) -> None:
    """Existing folders have hundreds of them; in a tree without settings of pytest each would fail."""
    write_folder(here, "waiting", "async def test(): pass\n")
    if settings:
        (here / "pytest.ini").write_text(settings)

    assert main(["env", "test", "+entrypoint=resources_servers/waiting"]) == status


def test_data_is_checked_for_one_folder_when_asked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Good tests do not make up for missing examples."""
    write_folder(here, "one", "def test(): pass\n")

    status = main(["env", "test", "--resources-server", "one", "+should_validate_data=true"])

    assert status == 1
    assert "example.jsonl is missing" in capsys.readouterr().out


def test_a_folder_that_others_derive_from_needs_no_examples(tmp_path: Path) -> None:
    """Nothing can be served from it: no app, no configuration."""
    folder = write_folder(tmp_path, "base", None)
    suite = FolderTests("resources_servers", "base", folder)
    assert needs_examples(suite)

    (folder / "app.py").unlink()

    assert not needs_examples(suite)


def test_each_fault_in_the_data_is_named(tmp_path: Path) -> None:
    """All at once, so that one round of fixing is enough."""
    folder = write_folder(tmp_path, "one", None)
    write_data(folder)
    assert data_problems(folder) == []

    (folder / "data" / "example.jsonl").write_text("{}\n" * 4)
    (folder / "data" / "example_metrics.json").write_text('{"Number of examples": 4}')
    (folder / "data" / "example_metrics_conflict.json").write_text("{}")
    (folder / "data" / "example_rollouts.jsonl").unlink()

    assert data_problems(folder) == [
        "example.jsonl has 4 rows, not 5",
        "example_metrics.json counts 4 examples, not 5",
        "example_metrics_conflict.json exists: the new metrics conflict with the committed ones",
        "example_rollouts.jsonl is missing",
    ]


def test_an_environment_that_cannot_be_made_is_a_result(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folders after it are still tested."""
    uv = here / "uv"
    uv.write_text("#!/bin/sh\necho No solution found >&2\nexit 2\n")
    uv.chmod(0o755)
    monkeypatch.setattr(venv_build, "uv_executable", lambda: uv)
    (write_folder(here, "greedy", "def test(): pass\n") / "requirements.txt").write_text("no-such-package\n")
    write_folder(here, "modest", "def test(): pass\n")

    status = main(["env", "test", "--json", f"+cache_dir={here}/cache"])

    verdicts = {v["name"]: v["result"] for v in json.loads(capsys.readouterr().out)}
    assert status == 1
    assert verdicts == {"resources_servers/greedy": "not installed", "resources_servers/modest": "passed"}


def test_an_unknown_folder_gets_the_nearest(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A typo is one line, not a hunt."""
    write_folder(here, "arithmetic", None)

    assert main(["env", "test", "--resources-server", "arithmetics"]) == 2
    assert "try: resources_servers/arithmetic" in capsys.readouterr().err


def test_shards_are_disjoint_and_complete(tmp_path: Path) -> None:
    """Several machines test a tree together, each folder once."""
    suites = [FolderTests("resources_servers", f"s{n}", tmp_path) for n in range(7)]

    parts = [choose_shard(suites, {"num_shards": 3, "shard_index": index}) for index in range(3)]

    assert sorted(suite.name for part in parts for suite in part) == [f"s{n}" for n in range(7)]
    with pytest.raises(ConfigError, match="3 is not one of 3 shards"):
        choose_shard(suites, {"num_shards": 3, "shard_index": 3})


def test_the_first_root_wins_and_hidden_folders_do_not_count(tmp_path: Path) -> None:
    """A user's copy shadows ours, as it does when servers are started."""
    first, second = tmp_path / "first", tmp_path / "second"
    mine = write_folder(first, "same", None)
    write_folder(second, "same", None)
    write_folder(second, ".hidden", None)

    assert [suite.folder for suite in find_folder_tests([first, second])] == [mine]


@pytest.mark.parametrize(
    ("status", "result"),
    [(0, "passed"), (1, "failed"), (2, "failed"), (5, "missing"), (3, "unrecognised"), (-9, "unrecognised")],
)
def test_statuses_of_pytest_have_names(status: int, result: str) -> None:
    """An unknown status must never count as passed."""
    assert outcome_of_exit(status) == result


@pytest.fixture
def mirror(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A generated environment."""
    assert main(["env", "init", "--environment", "mirror"]) == 0
    capsys.readouterr()
    return here


def test_a_verifier_is_tried_by_the_name_of_its_environment(mirror: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the server's own interpreter, against the range that the manifest promises."""
    status = main(["env", "test", "mirror", "--json"])

    result = json.loads(capsys.readouterr().out)
    assert status == 0
    assert (result["name"], result["kind"], result["passed"]) == ("mirror", "environment", True)
    assert {case["kind"] for case in result["cases"]} == {"full_reward", "zero_reward", "malformed", "determinism"}


def test_a_changed_verifier_is_found_out_and_can_be_accepted(mirror: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A reward that changed by accident is seen; one that changed on purpose is written down."""
    app = mirror / "resources_servers/mirror/app.py"
    app.write_text(app.read_text().replace("float(is_correct)", "float(is_correct) / 2"))

    before = main(["env", "test", "mirror"])
    shown = capsys.readouterr().out
    main(["env", "test", "mirror", "--update-expected"])
    cases = (mirror / "resources_servers/mirror/tests/verifier_cases.jsonl").read_text()

    assert before == 1
    assert "expected 1, found 0.5" in shown
    assert '"expected_reward": 0.5' in cases
    assert "a full reward is 1 here, found 0.5" in capsys.readouterr().out  # the manifest still promises 1


def test_a_fixture_that_cannot_run_is_an_error(mirror: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An untested verifier must not look tested."""
    app = mirror / "resources_servers/mirror/app.py"
    app.write_text(app.read_text().replace("VERIFIER_FIXTURE = ", "FIXTURE = "))

    assert main(["env", "test", "mirror"]) == 1
    assert "exports no VERIFIER_FIXTURE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere"], "one of mirror"),
        (["mirror", "--kind", "benchmark"], "benchmarks/mirror/manifest.yaml not found"),
        (["mirror", "--resources-server", "mirror"], "NAME and a server folder cannot be combined"),
        (["--update-expected"], "need a NAME"),
        (["--resources-server", "nowhere"], "server folder resources_servers/nowhere not found"),
    ],
)
def test_an_unknown_name_is_a_usage_error(
    mirror: Path, capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    """Scripts distinguish a wrong name from a failed test."""
    assert main(["env", "test", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_an_override_is_not_taken_for_a_name(here: Path) -> None:
    """argparse puts the first override into NAME."""
    write_folder(here, "one", "def test(): pass\n")

    assert main(["env", "test", "+entrypoint=resources_servers/one"]) == 0
