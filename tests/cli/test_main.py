"""One door: every command answers for help, misspelt words get the nearest, and old names still work."""

import gc
import importlib
import json
import pkgutil
import re
import sys
import tomllib
from pathlib import Path

import pytest

import nemo_gym
from nemo_gym import PARENT_DIR
from nemo_gym.cli import legacy, rounds
from nemo_gym.cli.complete import candidates
from nemo_gym.cli.explain import explanations
from nemo_gym.cli.main import ALONE, GROUPS, build_parser, main
from nemo_gym.errors import GymError
from nemo_gym.rollouts.outcome import FailureKind

COMMANDS = [(group, name) for group, (_, commands) in GROUPS.items() for name in commands] + [(name,) for name in ALONE]


def ended(*words: str) -> int:
    """The exit status of a command, however it ends."""
    try:
        return main(words)
    except SystemExit as end:
        return int(end.code or 0)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(*words, "--help") == 0

    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: gym {' '.join(words)}")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_can_be_asked_to_say_more(words: tuple[str, ...]) -> None:
    """`-v` stands before a command or after it, and one need not know which commands take it."""
    parser = build_parser(words)[0]
    given = ["x"] if words == ("search",) else ["--config", "x"] if words == ("eval", "submit") else []

    args, rest = parser.parse_known_args([*words, *given, "-v"])

    assert not [word for word in rest if word.startswith("-")]
    assert getattr(args, "verbose_log", False) or args.verbose


@pytest.mark.parametrize("words", [(), ("env",), ("list",)], ids=str)
def test_without_a_command_there_is_help(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """The first thing a newcomer types."""
    assert ended(*words) == 1

    assert "COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("serach", "x"), "Did you mean `search`?"),
        (("list", "benchmark"), "Did you mean `benchmarks`?"),
        (("list", "environments", "--domian", "math"), "Did you mean `--domain`?"),
        (("list", "environments", "--kind", "thing"), "invalid choice"),
        (("search", "modles", "smol"), "Did you mean `models`?"),
        (("eval", "run", "--enviroment", "x"), "usage: gym eval run [options]"),
        (("env", "validate"), "no configuration is named"),
        (("env", "validate", "--environment", "arithmetik"), "try: arithmetic"),
    ],
)
def test_a_misspelt_word_is_a_usage_error_that_names_the_nearest(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(*words) == 2

    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""


def test_an_environment_without_a_model_says_how_to_choose_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first thing everybody forgets."""
    monkeypatch.chdir(tmp_path)

    assert ended("eval", "run", "--environment", "arithmetic") == 2

    assert "--model-type" in capsys.readouterr().err


def test_version_as_json_has_what_a_bug_report_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("--version", "--json") == 0

    facts = json.loads(capsys.readouterr().out)
    assert facts["nemo_gym"] == nemo_gym.__version__
    assert facts["dependencies"].keys() >= {"openai", "ray"}
    assert facts["system"].keys() == {"os", "platform", "architecture", "processor", "cpus", "memory_gb"}


def test_debug_shows_where_an_error_came_from() -> None:
    with pytest.raises(GymError):
        main(["list", "agents", "nobody", "--debug"])


@pytest.mark.parametrize("what", ["benchmarks", "environments", "agents", "models", "resources-servers"])
def test_every_list_has_rows_for_programs(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("list", what, "--json") == 0

    rows = json.loads(capsys.readouterr().out)
    assert isinstance(rows, list)
    assert all({"name", "description"} <= row.keys() for row in rows)


def test_one_environment_is_shown_with_a_command_that_runs_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("list", "environments", "arithmetic", "--json") == 0

    found = json.loads(capsys.readouterr().out)
    assert found["usage_example"] == "gym eval run --environment arithmetic --model-type embedded_model"
    assert found["details"]["agent"] == "arithmetic_simple_agent"


def test_a_name_nobody_has_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("list", "environments", "arithmetik") == 1

    assert "gym list environments arithmetic" in capsys.readouterr().err


def test_a_filter_says_what_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    """An environment that says nothing about its modality may still be the one that was wanted."""
    assert ended("list", "environments", "--modality", "text", "--json") == 0

    assert "say nothing about modality" in capsys.readouterr().err


def test_search_finds_by_what_things_are_about(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("search", "summs", "--json") == 0
    assert "arithmetic" in [row["name"] for row in json.loads(capsys.readouterr().out)]

    assert ended("search", "models", "smol", "--json") == 0
    assert "embedded_model" in [row["name"] for row in json.loads(capsys.readouterr().out)]


def test_folders_of_ones_own_are_searched_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "environments" / "mine").mkdir(parents=True)
    (tmp_path / "environments" / "mine" / "config.yaml").write_text("# Mine alone\n{}\n")

    assert ended("list", "environments", "mine", "--search-dir", str(tmp_path), "--json") == 0

    assert json.loads(capsys.readouterr().out)["description"] == "Mine alone"


def error_classes() -> set[type[GymError]]:
    """Every kind of error the package can raise."""
    for module in pkgutil.walk_packages(nemo_gym.__path__, "nemo_gym."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found, waiting = set(), [GymError]
    while waiting:
        kind = waiting.pop()
        found.add(kind)
        waiting += [sub for sub in kind.__subclasses__() if sub.__module__.startswith("nemo_gym.")]
    return found


def test_every_error_and_failure_is_explained() -> None:
    """`gym explain` must never shrug at a code we print ourselves."""
    codes = {kind.code for kind in error_classes()} | {str(kind) for kind in FailureKind}
    codes |= {f"exit-status-{status}" for status in (0, 1, 2, 3, 130)}

    assert codes - explanations().keys() == set()


def test_all_explanations_are_listed_by_a_whole_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """A list of sentences that stop in the middle explains nothing."""
    assert ended("explain", "--json") == 0

    summaries = json.loads(capsys.readouterr().out)
    assert summaries.keys() == explanations().keys()
    assert not [text for text in summaries.values() if text[-1] not in ".:`"]


def test_an_explanation_of_something_unknown_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("explain", "server-dead") == 2

    assert "Did you mean `server" in capsys.readouterr().err


def test_the_doctor_finds_this_machine_fit(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows which keys are set, and never what they are."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")

    ended("doctor", "--json")

    shown = capsys.readouterr().out
    findings = {finding["what"]: finding for finding in json.loads(shown)}
    assert findings["Python"]["level"] == "fine"
    assert "OPENAI_API_KEY" in findings["Keys in the environment"]["found"]
    assert "sk-very-secret" not in shown
    assert all(finding["fix"] for finding in findings.values() if finding["level"] == "problem")


@pytest.mark.parametrize(
    ("before", "begun", "some"),
    [
        ([], "e", {"env", "eval", "explain"}),
        (["eval"], "", {"run", "profile"}),
        (["list"], "ag", {"agents"}),
        (["list", "environments"], "--st", {"--status"}),
        (["list", "environments", "--kind"], "", {"environment", "benchmark"}),
        (["eval", "run", "--environment"], "ari", {"arithmetic"}),
        (["env", "validate", "--model-type"], "emb", {"embedded_model"}),
    ],
)
def test_the_shell_completes_commands_flags_and_names(before: list[str], begun: str, some: set[str]) -> None:
    found = candidates(before, begun)

    assert some <= set(found)
    assert all(word.startswith(begun) for word in found)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("completion", shell) == 0

    assert "gym completion --words" in capsys.readouterr().out


@pytest.mark.parametrize("prefix", ["ng_", "nemo_gym_"])
@pytest.mark.parametrize("name", legacy.REPLACEMENTS)
def test_every_old_command_names_its_replacement_and_runs_it(
    prefix: str, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts of years past keep working; their authors learn the new name."""
    monkeypatch.setattr(sys, "argv", [f"/somewhere/bin/{prefix}{name}", "--help"])

    try:
        status = legacy.main()
    except SystemExit as end:
        status = int(end.code or 0)

    shown = capsys.readouterr()
    assert status == 0
    assert f"{prefix}{name} is now `gym {' '.join(legacy.REPLACEMENTS[name])}`" in shown.err
    assert shown.out.startswith("usage: gym")


def test_every_old_command_is_installed() -> None:
    """What is not in the project's scripts cannot be typed."""
    scripts = tomllib.loads((PARENT_DIR / "pyproject.toml").read_text())["project"]["scripts"]

    assert {f"{prefix}{name}" for prefix in legacy.PREFIXES for name in legacy.REPLACEMENTS} <= scripts.keys()
    assert all(re.fullmatch(r"nemo_gym\.cli\.(main|legacy):main", target) for target in scripts.values())


def test_an_old_command_that_never_was_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert legacy.run("ng_nonsense", []) == 1

    assert "gym --help" in capsys.readouterr().err


@pytest.mark.parametrize("own_process", [True, False])
def test_a_command_looks_for_garbage_rarely_in_a_process_of_its_own_only(
    own_process: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Imports are most of a short command; somebody's program that calls `main` keeps its own settings."""
    before = gc.get_threshold()
    monkeypatch.setattr(sys, "argv", ["gym", "--version"])
    try:
        assert main(None if own_process else ["--version"]) == 0
        assert gc.get_threshold() == (rounds.RARE if own_process else before)
    finally:
        gc.set_threshold(*before)
    assert capsys.readouterr().out
