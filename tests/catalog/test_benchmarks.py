"""Benchmarks are prepared by their scripts, after all scripts have been checked."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.benchmarks import PrepareBenchmarkConfig, PreparedBenchmark, PrepareFailed, preparations, prepare_all
from nemo_gym.catalog.benchmarks import ScriptRunner
from nemo_gym.errors import ConfigError
from tests.processes import eventually, is_gone

SCRIPT = """
import json
from pathlib import Path

HERE = Path(__file__).parent

def prepare(rows: int = 2) -> Path:
    (HERE / "ran").touch()
    path = HERE / "rows.jsonl"
    path.write_text("".join(json.dumps({"responses_create_params": {"input": str(n)}}) + "\\n" for n in range(rows)))
    return path
"""


def dataset(name: str, **fields: Any) -> dict[str, Any]:
    script = f"benchmarks/{name}/prepare.py"
    rows = f"benchmarks/{name}/rows.jsonl"
    return {"name": name, "type": "benchmark", "jsonl_fpath": rows, "prepare_script": script, **fields}


def agent(*datasets: dict[str, Any]) -> dict[str, Any]:
    return {"responses_api_agents": {"simple_agent": {"datasets": list(datasets)}}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("sums", "facts"):
        folder = tmp_path / "benchmarks" / name
        folder.mkdir(parents=True)
        (folder / "prepare.py").write_text(SCRIPT)
    return tmp_path


def prepare(config: dict[str, Any], root: Path, **fields: Any) -> list[PreparedBenchmark]:
    return prepare_all(preparations(config, [root]), PrepareBenchmarkConfig.model_validate(fields))


BOTH = {"a": agent(dataset("sums")), "b": agent(dataset("facts"))}


@pytest.mark.parametrize("processes", [1, 2])
def test_every_benchmark_of_a_configuration_is_prepared(root: Path, processes: int) -> None:
    """A suite of benchmarks is prepared with one command, however many processes it uses."""
    done = prepare(BOTH, root, num_prepare_benchmark_processes=processes, prepare_script_args={"rows": 3})

    assert [(one.agent, one.name, one.rows, one.cached) for one in done] == [
        ("a", "sums", 3, False),
        ("b", "facts", 3, False),
    ]
    assert done[0].path == root / "benchmarks/sums/rows.jsonl"


def test_existing_rows_can_be_reused(root: Path) -> None:
    """Some preparations take an hour, which should not be spent twice."""
    prepare(BOTH, root)
    (root / "benchmarks/sums/ran").unlink()

    done = prepare(BOTH, root, use_cached_prepared_benchmarks=True)

    assert [one.cached for one in done] == [True, True]
    assert not (root / "benchmarks/sums/ran").exists()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("import nowhere_to_be_found\n", "cannot be imported: ModuleNotFoundError"),
        ("x = 1\n", "has no function 'prepare'"),
        ("def prepare(other): ...\n", "missing a required argument: 'other'"),
    ],
)
def test_no_script_runs_unless_all_can(root: Path, script: str, reason: str) -> None:
    """An error after the first hour-long download is an hour late."""
    (root / "benchmarks/facts/prepare.py").write_text(script)

    with pytest.raises(ConfigError, match=reason) as caught:
        prepare(BOTH, root)

    assert "no benchmark was prepared" in str(caught.value)
    assert not (root / "benchmarks/sums/ran").exists()


def test_an_import_without_end_is_killed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script with work at module level must not block the check, or change our process."""
    (root / "benchmarks/facts/prepare.py").write_text("import sys, time\nsys.path.clear()\ntime.sleep(600)\n")
    monkeypatch.setattr("nemo_gym.catalog.benchmarks.CHECK_SECONDS", 1.0)
    before = list(sys.path)

    with pytest.raises(ConfigError, match=r"importing the script .* took longer than 1 s") as caught:
        prepare(BOTH, root)

    assert "no benchmark was prepared" in str(caught.value)
    assert not (root / "benchmarks/sums/ran").exists()
    assert sys.path == before


def test_an_argument_that_no_script_takes_is_refused(root: Path) -> None:
    """A misspelt argument would silently prepare the default instead."""
    with pytest.raises(ConfigError, match="unexpected keyword argument 'rws'"):
        prepare(BOTH, root, prepare_script_args={"rws": 3})


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "no agent has a dataset of type 'benchmark'"),
        ({"a": agent({"name": "x", "type": "example", "jsonl_fpath": "x"})}, "no agent has"),
        ({"a": agent(dataset("sums"), dataset("facts"))}, "a has 2 datasets of type 'benchmark'"),
        ({"a": agent(dataset("none"))}, r"file not found: benchmarks/none/prepare\.py in"),
        ({"a": agent({"name": "x", "type": "benchmark"})}, "jsonl_fpath: Field required; prepare_script"),
    ],
)
def test_a_configuration_that_cannot_be_prepared_is_refused(root: Path, config: dict[str, Any], reason: str) -> None:
    """The user needs the agent and the reason to repair the configuration."""
    with pytest.raises(ConfigError, match=reason):
        preparations(config, [root])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise RuntimeError('no disk')", r"prepare\(\) failed: RuntimeError: no disk"),
        ("return None", "returned None instead of a path"),
        ("return HERE / 'other.jsonl'", "but jsonl_fpath is benchmarks/facts/rows.jsonl"),
        ("return HERE / 'rows.jsonl'", "which does not exist"),
        (
            "(HERE / 'rows.jsonl').write_text('[]'); return HERE / 'rows.jsonl'",
            r"rows\.jsonl: line 1: the line is a list, not a JSON object",
        ),
        (
            "(HERE / 'rows.jsonl').write_text('{'); return HERE / 'rows.jsonl'",
            r"rows\.jsonl: line 1: the line is not JSON",
        ),
        (
            "(HERE / 'rows.jsonl').write_text('{}'); return HERE / 'rows.jsonl'",
            "line 1: responses_create_params: the field is missing",
        ),
        ("(HERE / 'rows.jsonl').write_text(''); return HERE / 'rows.jsonl'", "the file has no rows"),
    ],
)
def test_a_failing_script_is_named_and_does_not_stop_the_others(root: Path, body: str, reason: str) -> None:
    """One broken benchmark must not cost the preparation of the others."""
    source = (
        "from pathlib import Path\nHERE = Path(__file__).parent\n"
        "def write(text):\n    path = HERE / 'rows.jsonl'\n    path.write_text(text)\n    return path\n"
        f"def prepare():\n    {body}\n"
    )
    (root / "benchmarks/facts/prepare.py").write_text(source)

    with pytest.raises(PrepareFailed, match=reason):
        prepare({"b": BOTH["b"], "a": BOTH["a"]}, root)

    assert (root / "benchmarks/sums/rows.jsonl").exists()


@pytest.mark.parametrize(
    ("body", "reason"),
    [("raise ValueError('no')", "ValueError: no"), ("import os; os._exit(3)", "its process ended with status 3")],
)
def test_a_dead_process_is_named(root: Path, body: str, reason: str) -> None:
    """A script may crash the interpreter, and the user must learn which."""
    (root / "benchmarks/facts/prepare.py").write_text(f"def prepare():\n    {body}\n")

    with pytest.raises(PrepareFailed, match=reason):
        prepare(BOTH, root, num_prepare_benchmark_processes=2)


def test_a_script_beyond_its_time_limit_is_killed(root: Path) -> None:
    """A hanging download must not block an unattended preparation."""
    (root / "benchmarks/facts/prepare.py").write_text("import time\ndef prepare():\n    time.sleep(600)\n")
    there = root / "benchmarks/sums/rows.jsonl"
    there.write_text('{"responses_create_params": {}}\n')
    limits = {"prepare_timeout_seconds": 0.2, "use_cached_prepared_benchmarks": True}

    with pytest.raises(PrepareFailed, match=r"facts/prepare\.py: prepare\(\) took longer than 0\.2 s(?s:.*)--timeout"):
        prepare(BOTH, root, **limits)


def test_a_killed_script_takes_its_children_along(root: Path) -> None:
    """No download may continue unseen after the time limit or Ctrl-C."""
    script, pid = root / "benchmarks/facts/prepare.py", root / "pid"
    script.write_text(
        "import subprocess, time\nfrom pathlib import Path\ndef prepare(pid):\n"
        "    child = subprocess.Popen(['sleep', '600'])\n"
        "    Path(pid + '.partial').write_text(str(child.pid))\n    Path(pid + '.partial').rename(pid)\n"
        "    time.sleep(600)\n"
    )
    scripts = ScriptRunner()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(scripts.run, script, "facts", {"pid": str(pid)})
        assert eventually(pid.exists)

        scripts.stop()

        assert isinstance(running.exception(timeout=60), PrepareFailed)
    assert eventually(lambda: is_gone(int(pid.read_text())))


@pytest.mark.parametrize("processes", [1, 2])
def test_output_of_a_script_goes_to_stderr(root: Path, capfd: pytest.CaptureFixture[str], processes: int) -> None:
    """`gym eval prepare --json` must print exactly one object on stdout."""
    (root / "benchmarks/sums/prepare.py").write_text(SCRIPT.replace("path = HERE", "print('loading'); path = HERE"))

    prepare({"a": agent(dataset("sums"))}, root, num_prepare_benchmark_processes=processes)

    output = capfd.readouterr()
    assert (output.out, "loading" in output.err) == ("", True)


def test_with_a_prompt_rows_need_no_input(root: Path) -> None:
    """The prompt builds the input when the benchmark runs."""
    source = SCRIPT.replace('{"responses_create_params": {"input": str(n)}}', '{"question": str(n)}')
    (root / "benchmarks/sums/prepare.py").write_text(source)

    (done,) = prepare({"a": agent(dataset("sums", prompt_config="prompt.yaml"))}, root)

    assert json.loads(done.path.read_text().splitlines()[0]) == {"question": "0"}


def test_scripts_of_the_same_name_in_two_roots_are_not_confused(root: Path, tmp_path_factory: Any) -> None:
    """The first root wins, even if the other script was imported before."""
    prepare({"a": agent(dataset("sums"))}, root)
    other = tmp_path_factory.mktemp("other")
    (other / "benchmarks/sums").mkdir(parents=True)
    (other / "benchmarks/sums/prepare.py").write_text(SCRIPT.replace("rows: int = 2", "rows: int = 5"))

    (done,) = prepare_all(preparations({"a": agent(dataset("sums"))}, [other, root]), PrepareBenchmarkConfig())

    assert (done.rows, done.path) == (5, other / "benchmarks/sums/rows.jsonl")
