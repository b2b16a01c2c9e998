"""Every command has help, misspelt words get the nearest name, and old names still work."""

import gc
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import nemo_gym
from nemo_gym import PARENT_DIR
from nemo_gym.cli import legacy
from nemo_gym.cli.completion import find_candidates
from nemo_gym.cli.explain import load_explanations
from nemo_gym.cli.main import IMPORT_GC_THRESHOLD, main
from nemo_gym.cli.parser import GROUPS, TOP_LEVEL_COMMANDS, build_parser
from nemo_gym.errors import GymError
from nemo_gym.rollouts.outcome import FailureKind
from tests.all_modules import import_all_modules

COMMANDS = [(group, name) for group, (_, commands) in GROUPS.items() for name in commands] + [
    (name,) for name in TOP_LEVEL_COMMANDS
]


def exit_status(*words: str) -> int:
    """Return the exit status of a command, whether it returns or exits."""
    try:
        return main(words)
    except SystemExit as end:
        return int(end.code or 0)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` must work for every command."""
    assert exit_status(*words, "--help") == 0

    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: gym {' '.join(words)}")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_a_verbose_flag(words: tuple[str, ...]) -> None:
    """`-v` stands before a command or after it, and one need not know which commands take it."""
    parser = build_parser(words)[0]
    required = ["x"] if words == ("search",) else ["--config", "x"] if words == ("eval", "submit") else []

    args, rest = parser.parse_known_args([*words, *required, "-v"])

    assert not [word for word in rest if word.startswith("-")]
    assert args.verbose


@pytest.mark.parametrize("words", [(), ("env",), ("list",)], ids=str)
def test_without_a_command_there_is_help(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """The first thing a newcomer types."""
    assert exit_status(*words) == 1

    assert "COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("serach", "x"), "Did you mean `search`?"),
        (("list", "benchmark"), "Did you mean `benchmarks`?"),
        (("list", "environments", "--domian", "math"), "Did you mean `--domain`?"),
        (("list", "environments", "--kind", "thing"), "invalid choice"),
        (("search", "modles", "smol"), "Did you mean `models`?"),
        (("eval", "run", "--limt", "3", "--num-repeat", "2"), "Did you mean `--limit`? Did you mean `--num-repeats`?"),
        (("dataset", "collate", "--xnputx", "x"), "unrecognized arguments: --xnputx.\n"),  # dashes are no similarity
        (("eval", "run", "--enviroment", "x"), "usage: gym eval run [options]"),
        (("env", "validate"), "no configuration to check"),
        (("env", "validate", "--environment", "arithmetik"), "try: arithmetic"),
    ],
)
def test_a_misspelt_word_is_a_usage_error_that_names_the_nearest(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typo must cost one second, not a search in the documentation."""
    assert exit_status(*words) == 2

    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""


def test_an_environment_without_a_model_says_how_to_choose_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New users forget it first."""
    monkeypatch.chdir(tmp_path)

    assert exit_status("eval", "run", "--environment", "arithmetic") == 2

    assert "--model-type" in capsys.readouterr().err


def test_version_as_json_has_what_a_bug_report_needs(capsys: pytest.CaptureFixture[str]) -> None:
    """Maintainers ask for these facts first."""
    assert exit_status("--version", "--json") == 0

    facts = json.loads(capsys.readouterr().out)
    assert facts["nemo_gym"] == nemo_gym.__version__
    assert facts["dependencies"].keys() >= {"openai", "ray"}
    assert facts["system"].keys() == {"os", "platform", "architecture", "processor", "cpus", "memory_gb"}


def test_debug_shows_where_an_error_came_from() -> None:
    """Developers need the traceback."""
    with pytest.raises(GymError):
        main(["list", "agents", "nobody", "--debug"])


@pytest.mark.parametrize("what", ["benchmarks", "environments", "agents", "models", "resources-servers"])
def test_every_list_has_rows_for_programs(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Programs need names and descriptions."""
    assert exit_status("list", what, "--json") == 0

    rows = json.loads(capsys.readouterr().out)
    assert isinstance(rows, list)
    assert all({"name", "description"} <= row.keys() for row in rows)


def test_one_environment_is_shown_with_a_command_that_runs_it(capsys: pytest.CaptureFixture[str]) -> None:
    """New users copy the command."""
    assert exit_status("list", "environments", "arithmetic", "--json") == 0

    result = json.loads(capsys.readouterr().out)
    assert result["usage_example"] == "gym eval run --environment arithmetic --model-type embedded_model"
    assert result["details"]["agent"] == "arithmetic_simple_agent"


def test_the_manifest_of_an_environment_is_shown_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    """A dictionary of Python is not for readers."""
    assert exit_status("list", "environments", "arithmetic") == 0

    shown = capsys.readouterr().out
    assert "manifest modality" in shown and "{" not in shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("srv: {resource_servers: {arithmetic: {entrypoint: app.py}}}", "write resources_servers in place of"),
        ("x: 1", "the configuration defines no agent"),
        (None, "Error: config file 'own.yaml' does not exist"),
    ],
)
def test_a_configuration_without_an_agent_is_an_error_with_the_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, message: str
) -> None:
    """Otherwise the first error is about datasets, of agents that the user believes to have."""
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("own.yaml").write_text(text)

    assert exit_status("eval", "run", "--config", "own.yaml", "--model-type", "scripted_model") == 2

    assert message in capsys.readouterr().err


def test_several_models_with_a_wrong_name_give_one_error(tmp_path: Path) -> None:
    """A table of runs that did not begin hides the error."""
    words = ("--environment", "arithmetik", "--model-type", "scripted_model", "--model", "a", "--model", "b")
    command = [sys.executable, "-m", "nemo_gym", "eval", "run", *words]

    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stderr.count("unknown name")) == (2, 1)
    assert "mean reward" not in ended.stdout


def test_an_unknown_name_gets_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    """A typo is the most common mistake."""
    assert exit_status("list", "environments", "arithmetik") == 1

    assert "gym list environments arithmetic" in capsys.readouterr().err


def test_a_filter_says_what_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    """An environment that says nothing about its modality may still be the one that was wanted."""
    assert exit_status("list", "environments", "--modality", "text", "--json") == 0

    assert "have no modality" in capsys.readouterr().err


def test_search_finds_components_by_topic(capsys: pytest.CaptureFixture[str]) -> None:
    """Users search by topic and misspell words."""
    assert exit_status("search", "summs", "--json") == 0
    assert "arithmetic" in [row["name"] for row in json.loads(capsys.readouterr().out)]

    assert exit_status("search", "models", "smol", "--json") == 0
    assert "embedded_model" in [row["name"] for row in json.loads(capsys.readouterr().out)]


def test_search_dirs_are_searched_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Users override components with --search-dir."""
    (tmp_path / "environments" / "mine").mkdir(parents=True)
    (tmp_path / "environments" / "mine" / "config.yaml").write_text("# Mine alone\n{}\n")

    assert exit_status("list", "environments", "mine", "--search-dir", str(tmp_path), "--json") == 0

    assert json.loads(capsys.readouterr().out)["description"] == "Mine alone"


def error_classes() -> set[type[GymError]]:
    """Every kind of error the package can raise."""
    import_all_modules()
    result, waiting = set(), [GymError]
    while waiting:
        kind = waiting.pop()
        result.add(kind)
        waiting += [sub for sub in kind.__subclasses__() if sub.__module__.startswith("nemo_gym.")]
    return result


def test_every_error_and_failure_is_explained() -> None:
    """`gym explain` must never shrug at a code we print ourselves."""
    codes = {kind.code for kind in error_classes()} | {str(kind) for kind in FailureKind}
    codes |= {f"exit-status-{status}" for status in (0, 1, 2, 3, 130)}

    assert codes - load_explanations().keys() == set()


def test_all_explanations_are_listed_by_a_whole_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """A list of sentences that stop in the middle explains nothing."""
    assert exit_status("explain", "--json") == 0

    summaries = json.loads(capsys.readouterr().out)
    assert summaries.keys() == load_explanations().keys()
    assert not [text for text in summaries.values() if text[-1] not in ".`"]


def test_an_interrupt_that_python_wraps_is_an_interrupt(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11 turns Ctrl-C inside `__set_name__`, while modules are imported, into a RuntimeError."""

    def interrupted_import(_args: object) -> int:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as interrupt:
            raise RuntimeError("Error calling __set_name__") from interrupt

    monkeypatch.setattr("nemo_gym.cli.explain.run", interrupted_import)

    assert exit_status("explain", "timeout") == 130
    assert capsys.readouterr().err == "interrupted\n"
    with pytest.raises(RuntimeError):
        exit_status("--debug", "explain", "timeout")


def test_an_error_while_ctrl_c_is_handled_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is another fault, which "interrupted" would hide."""

    def faulty_cleanup(_args: object) -> int:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise ValueError("cleanup failed")  # noqa: B904 - the case: raised by accident

    monkeypatch.setattr("nemo_gym.cli.explain.run", faulty_cleanup)

    with pytest.raises(ValueError, match="cleanup failed"):
        exit_status("explain", "timeout")


def test_an_explanation_of_something_unknown_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    """A code is often retyped by hand."""
    assert exit_status("explain", "server-dead") == 2

    assert "Did you mean `server" in capsys.readouterr().err


def test_the_doctor_finds_no_problem_with_this_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows which keys are set, and never what they are."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")

    exit_status("doctor", "--json")

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
    """Completion covers everything that can be typed."""
    result = find_candidates(before, begun)

    assert some <= set(result)
    assert all(word.startswith(begun) for word in result)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The documentation promises bash, zsh and fish."""
    assert exit_status("completion", shell) == 0

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

    assert {f"{prefix}{name}" for prefix in ("nemo_gym_", "ng_") for name in legacy.REPLACEMENTS} <= scripts.keys()
    assert all(re.fullmatch(r"nemo_gym\.cli\.(main|legacy):main", target) for target in scripts.values())


def test_an_unknown_old_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt program name must not run another command."""
    assert legacy.run("ng_nonsense", []) == 1

    assert "gym --help" in capsys.readouterr().err


@pytest.mark.parametrize("own_process", [True, False])
def test_a_command_looks_for_garbage_rarely_in_a_process_of_its_own_only(
    own_process: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Imports are most of a short command; a program that calls `main` keeps its settings."""
    before = gc.get_threshold()
    monkeypatch.setattr(sys, "argv", ["gym", "--version"])
    try:
        assert main(None if own_process else ["--version"]) == 0
        assert gc.get_threshold() == (IMPORT_GC_THRESHOLD if own_process else before)
    finally:
        gc.set_threshold(*before)
    assert capsys.readouterr().out
