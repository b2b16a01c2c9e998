"""`gym eval run` from the shell: real servers, the scripted model, files on disk."""

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.catalog.row_problems import DataError
from nemo_gym.cli.eval.run import status_of
from nemo_gym.cli.main import main
from nemo_gym.cli.shared.concurrency import CommandInterrupted
from nemo_gym.cli.shared.options import UsageError
from nemo_gym.data.prompt import PromptError
from nemo_gym.errors import AgentFailed, ConfigError, FileProblem, GymError, ServerUnreachable
from nemo_gym.journal import StoreError
from nemo_gym.launch.supervisor import ServerDidNotStart
from nemo_gym.rollouts.resume import ResumeRefused
from nemo_gym.serve.run_registry import NoRunFound
from tests.processes import eventually

ROWS = [(1, 1), (2, 3), (4, 4), (2, 2)]
PATIENCE = 90.0
GYM = (sys.executable, "-m", "nemo_gym.cli.main")
AGENT = "arithmetic_simple_agent"
ARITHMETIC = ("eval", "run", "--resources-server", "arithmetic", "-a", AGENT, "-o", "out.jsonl")


def gym(*words: str, cwd: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*GYM, *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **env},
    )


def model_file(folder: Path, *script: dict[str, Any], name: str = "model.yaml") -> str:
    """A configuration of the scripted model that answers with `script`."""
    block = {"policy_model": {"responses_api_models": {"scripted_model": {"entrypoint": "app.py", "script": script}}}}
    path = folder / name
    path.write_text(json.dumps(block))
    return str(path)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.jsonl"
    lines = [{"responses_create_params": {"input": f"What is {a} + {b}?"}, "expected_answer": a + b} for a, b in ROWS]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_a_run_scores_every_row_and_reports_it(tmp_path: Path, rows: str) -> None:
    """The main job: rows in, scores and files out, exit status 0; stdout is one JSON object and nothing else."""
    second = tmp_path / "second.yaml"
    agent = {
        "entrypoint": "app.py",
        "resources_server": {"type": "resources_servers", "name": "arithmetic"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    second.write_text(json.dumps({"second_agent": {"responses_api_agents": {"simple_agent": agent}}}))
    own = {"responses_create_params": {"input": "What is 3 + 1?"}, "expected_answer": 4}
    with Path(rows).open("a") as more:
        more.write(json.dumps({**own, "agent_ref": {"name": "second_agent"}}) + "\n")

    done = gym(
        *ARITHMETIC, "--config", model_file(tmp_path, {"text": "It is 4."}), "--config", str(second), "-i", rows,
        "--num-repeats", "second_agent=3,_default=2", "--temperature", "0.5", "+num_repeats_add_seed=true",
        "+responses_create_params={top_p: 0.9}", "--json", cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["scored"], result["failed"], result["missing"]) == (11, {}, 0)
    assert result["mean_reward"] == pytest.approx(5 / 11)
    assert result["metrics"][AGENT]["mean/reward"] == 0.25
    assert result["metrics"]["second_agent"]["mean/reward"] == 1.0
    assert result["intervals_95"][AGENT]["mean/reward"][0] < 0.25
    records = lines_of(tmp_path / "out.jsonl")
    assert sorted((r["_ng_task_index"], r["_ng_rollout_index"]) for r in records) == [
        (task, repeat) for task in range(5) for repeat in range(3 if task == 4 else 2)
    ]
    for record in records:
        assert sum(record["_ng_phases"].values()) == pytest.approx(record["_ng_seconds"], abs=1e-4)
        assert min(record["_ng_phases"][phase] for phase in ("seed_session", "model", "verify", "agent")) > 0
    assert result["seconds_per_rollout"]["whole"] > result["seconds_per_rollout"]["model"] > 0
    sent = lines_of(tmp_path / "out_materialized_inputs.jsonl")[1]["responses_create_params"]
    assert (sent["temperature"], sent["top_p"], sent["metadata"]) == (0.5, 0.9, {"extra_body": '{"seed": 1}'})


def test_a_model_that_fails_gives_failures_and_no_reward(tmp_path: Path, rows: str) -> None:
    """An outage must never look like a bad model; the first failure is reported at once, and -x stops the run."""
    fault = {"fault": {"kind": "status", "status": 400, "message": "out of order"}}
    config = model_file(tmp_path, fault)

    done = gym(*ARITHMETIC, "--config", config, "-i", rows, "-x", "--concurrency", "1", cwd=tmp_path)

    assert done.returncode == 1, done.stderr
    assert "\nmodel_refused: policy_model: " in done.stdout
    assert (done.stdout + done.stderr).count("out of order") == 1, done.stderr
    assert "1 failed (model_refused 1)" in done.stdout
    assert "mean reward  none: nothing was scored" in done.stdout
    assert "stopped early: a rollout failed (max_failures 1)" in done.stdout
    assert "continue  gym eval run" in done.stdout
    (failure,) = lines_of(tmp_path / "out_failures.jsonl")
    assert failure["_ng_failure"]["whom"] == "policy_model"
    assert "reward" not in failure
    assert 0 < failure["_ng_phases"]["model"] < failure["_ng_seconds"]


def test_scripts_read_on_stderr_why_an_endpoint_refused_all_rows(tmp_path: Path, rows: str) -> None:
    """With --json no report names the cause."""
    fault = {"fault": {"kind": "status", "status": 400, "message": "out of order"}}
    config = model_file(tmp_path, fault)

    done = gym(*ARITHMETIC, "--config", config, "-i", rows, "--limit", "2", "--json", cwd=tmp_path)

    assert json.loads(done.stdout)["failed"] == {"model_refused": 2}
    assert done.stderr.count("out of order") == 1, done.stderr


def test_a_refused_key_is_one_error_with_the_way_to_go_on(tmp_path: Path, rows: str) -> None:
    """The run cannot succeed, and no row may be given up for it."""
    config = model_file(tmp_path, {"fault": {"kind": "status", "status": 401, "message": "unknown key"}})

    done = gym(*ARITHMETIC, "--config", config, "-i", rows, "--num-repeats", "3", "--json", cwd=tmp_path)

    assert done.returncode == 3, done.stderr
    result = json.loads(done.stdout)
    assert (result["exit_status"], result["scored"], result["failed"]) == (3, 0, {"model_refused": 12})
    error = "policy_model: the endpoint refuses the key (401: unknown key): 0 scored, 12 not tried\n  try: fix "
    assert error in result["error"]
    assert result["error"].endswith(" and run the same command with --resume")
    assert result["next"]["continue"].endswith("--resume")
    assert done.stderr.count("refuses the key") == 1
    assert "first model_refused" not in done.stderr  # the error at the end says it, with the fix
    assert [line["_ng_failure"]["counted"] for line in lines_of(tmp_path / "out_failures.jsonl")] == [False] * 12


class RunInFlight:
    """A running command whose first rollouts are in flight."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [*GYM, *ARITHMETIC, *words],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert eventually((folder / "out_materialized_inputs.jsonl").exists, PATIENCE)

    def send_signals(self, *signals: signal.Signals) -> tuple[int, str, str]:
        """Send each signal when the one before has been handled; return exit status, stdout and stderr."""
        assert self.process.stderr is not None
        text = ""
        for number in signals:
            os.kill(self.process.pid, number)
            while "interrupt again" not in text and (line := self.process.stderr.readline()):
                text += line
        stdout, stderr = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, stdout, text + stderr


def test_one_interrupt_finishes_what_is_in_flight(tmp_path: Path, rows: str) -> None:
    """SIGTERM from a batch system must not waste rollouts that are nearly done."""
    model = model_file(tmp_path, {"text": "It is 4.", "delay_seconds": 2.0})

    words = ("--config", model, "-i", rows, "--concurrency", "2", "--num-repeats", "2")
    status, stdout, stderr = RunInFlight(tmp_path, *words).send_signals(signal.SIGTERM)

    assert status == 130, stderr
    assert "continue  gym eval run" in stdout
    assert "--resume" in stdout
    done = len((tmp_path / "out.jsonl").read_text().splitlines()) if (tmp_path / "out.jsonl").exists() else 0
    assert done in (0, 2, 4, 6)  # whole pairs, however late the signal came
    assert f"{done} scored" in stdout
    assert "cancelled" not in stdout


def test_a_second_interrupt_does_not_wait_for_a_rollout_that_hangs(tmp_path: Path, rows: str) -> None:
    """Users must be able to stop at once."""
    stall = model_file(tmp_path, {"fault": {"kind": "stall", "seconds": 600}})
    running_command = RunInFlight(tmp_path, "--config", stall, "-i", rows, "--grace", "600")

    status, _, stderr = running_command.send_signals(signal.SIGINT, signal.SIGINT)

    assert status == 130, stderr
    assert "continue  gym eval run" in stderr
    assert "Traceback" not in stderr


def test_rows_of_an_unknown_agent_are_refused_before_anything_starts(tmp_path: Path, rows: str) -> None:
    """One misspelt name is one error with its line, not a failure per rollout, and costs no earlier result."""
    with Path(rows).open("a") as more:
        more.write(json.dumps({"responses_create_params": {"input": "?"}, "agent_ref": {"name": f"{AGENT}s"}}) + "\n")
    (tmp_path / "out.jsonl").write_text("{}\n")

    done = gym(*ARITHMETIC, "--model-type", "scripted_model", "-i", rows, "--json", cwd=tmp_path)

    assert done.returncode == 2, done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["where"] == rows
    assert error["problem"] == f"line 5: unknown agent '{AGENT}s' — did you mean '{AGENT}'?"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "rows.jsonl"]


def test_a_driver_that_fails_is_reported_with_its_records(tmp_path: Path, rows: str) -> None:
    """Its records count although they lack our indices, and its error is reported once."""
    (tmp_path / "my_driver.py").write_text(
        "from pathlib import Path\n"
        "async def drive(config, global_config_dict):\n"
        '    Path(config.output_jsonl_fpath).write_text(\'{"reward": 1}\\n{"reward": 0}\\n{"reward": NaN}\\n\')\n'
        "    raise RuntimeError('half way')\n"
    )

    done = gym(
        *ARITHMETIC, "--model-type", "scripted_model", "-i", rows, "--json",
        "+rollout_collection_driver=my_driver:drive", cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    assert (result["scored"], result["failed"], result["mean_reward"]) == (2, {"invalid_reward": 1}, 0.5)
    assert "my_driver:drive: RuntimeError: half way" in result["error"]
    assert "my_driver.py" in done.stderr  # the traceback, for its author


def test_a_driver_collects_in_our_place(tmp_path: Path, rows: str) -> None:
    """Trainers bring their own loop; servers, configuration and the report are still ours."""
    (tmp_path / "my_driver.py").write_text(
        "from nemo_gym.rollout_collection import RolloutCollectionHelper\n"
        "async def drive(config, global_config_dict):\n"
        "    assert global_config_dict['policy_model']\n"
        "    config.limit = 2\n"
        "    await RolloutCollectionHelper().run_from_config(config)\n"
    )
    model = model_file(tmp_path, {"text": "It is 4."})

    done = gym(
        *ARITHMETIC, "--config", model, "-i", rows, "--json", "+rollout_collection_driver=my_driver:drive",
        cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2
    result = json.loads(done.stdout)
    assert (result["scored"], result["total"], result["mean_reward"]) == (2, 2, 0.0)
    assert result["metrics"][AGENT]["mean/reward"] == 0.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which servers are running and registered."""
    folder = tmp_path_factory.mktemp("running")
    env = {"XDG_RUNTIME_DIR": str(folder)}
    model = model_file(folder, {"text": "It is 4."})
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*GYM, "env", "start", "--environment", "arithmetic", "--config", model],
            cwd=folder, stdout=log, stderr=log, env={**os.environ, **env},
        )  # fmt: skip
    try:
        assert eventually(lambda: "ready" in (folder / "log").read_text() or process.poll() is not None, PATIENCE)
        assert process.poll() is None, (folder / "log").read_text()
        yield env
    finally:
        process.terminate()
        process.wait(PATIENCE)


NO_SERVE = ("eval", "run", "--no-serve", "-o", "out.jsonl", "--json")


class InProcess:
    """Runs commands in this process, which is much faster than starting one."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        """Exit status, stdout and stderr."""
        try:
            status = main(words)
        except SystemExit as leaving:
            status = int(leaving.code or 0)
        captured = self._capsys.readouterr()
        assert "Traceback" not in captured.err
        return status, captured.out, captured.err


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[InProcess]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    thresholds = gc.get_threshold()
    yield InProcess(capsys)
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.fixture
def beside(here: InProcess, running: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> InProcess:
    """Run commands where servers are running."""
    for name, value in running.items():
        monkeypatch.setenv(name, value)
    return here


def test_servers_that_are_running_are_found_without_a_port(tmp_path: Path, beside: InProcess) -> None:
    """Keep the servers up, evaluate again and again; a prompt builds the input of rows that have none."""
    (tmp_path / "prompt.yaml").write_text("user: 'What is {a} plus {b}?'\n")
    bare = tmp_path / "bare.jsonl"
    bare.write_text("".join(json.dumps({"a": a, "b": b, "expected_answer": a + b}) + "\n" for a, b in ROWS))

    status, stdout, stderr = beside(*NO_SERVE, "-i", str(bare), "--prompt-config", "prompt.yaml", "-a", AGENT)

    assert status == 0, stderr
    assert json.loads(stdout)["mean_reward"] == 0.25
    sent = lines_of(tmp_path / "out_materialized_inputs.jsonl")[1]["responses_create_params"]["input"]
    assert sent == [{"role": "user", "content": "What is 2 plus 3?"}]


def test_running_agents_bring_their_own_rows(tmp_path: Path, beside: InProcess) -> None:
    """The datasets of the agents need not be named again."""
    status, stdout, stderr = beside(*NO_SERVE, "--limit", "3", "--disable-aggregation")

    assert status == 0, stderr
    result = json.loads(stdout)
    assert (result["scored"], result["metrics"]) == (3, {})
    assert (tmp_path / "out" / "preprocessed_datasets" / "example.jsonl").is_file()


def test_resume_runs_what_is_missing_and_nothing_else(tmp_path: Path, rows: str, beside: InProcess) -> None:
    """Finished rollouts are not paid for twice, and rollouts of another run are not mixed in."""
    words = (*NO_SERVE, "-i", rows, "-a", AGENT)
    status, _, stderr = beside(*words)
    assert status == 0, stderr
    output = tmp_path / "out.jsonl"
    kept = output.read_text().splitlines()[:2]
    output.write_text("".join(f"{line}\n" for line in kept) + '{"torn')

    status, stdout, stderr = beside(*words, "--resume")

    assert status == 0, stderr
    result = json.loads(stdout)
    assert (result["scored"], result["finished_before"], result["total"], result["mean_reward"]) == (2, 2, 4, 0.25)
    assert "resuming: 2 of 4 rollouts are scored" in stderr
    lines = output.read_text().splitlines()
    assert lines[:2] == kept
    assert sorted(json.loads(line)["_ng_task_index"] for line in lines) == [0, 1, 2, 3]

    status, stdout, stderr = beside(*words, "--resume", "--temperature", "1")

    assert status == 2, stderr
    assert json.loads(stdout)["error"]["kind"] == "ResumeRefused"
    assert output.read_text().splitlines() == lines


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("-a", "arithmetic_simple_agnt"), 2, "try: arithmetic_simple_agent"),
        (("--run", "1"), 2, "unknown run '1'"),
        (("+head_server.host=127.0.0.1", "+head_server.port=9"), 3, "could not connect to the head server"),
        (("-a", AGENT, "-o", "/proc/nowhere/out.jsonl"), 3, "/proc/nowhere"),
    ],
)
def test_errors_with_running_servers_have_their_exit_status(
    rows: str, beside: InProcess, words: tuple[str, ...], status: int, message: str
) -> None:
    """2 means wrong usage, 3 means broken infrastructure."""
    ended, stdout, stderr = beside(*NO_SERVE, "-i", rows, *words)

    assert ended == status, stderr
    assert message in stderr
    assert json.loads(stdout)["exit_status"] == status


def test_a_dry_run_checks_everything_and_collects_nothing(tmp_path: Path, rows: str, beside: InProcess) -> None:
    """A long run is checked before it costs money."""
    status, stdout, stderr = beside(*NO_SERVE, "-i", rows, "-a", AGENT, "--dry-run")

    assert status == 0, stderr
    assert "nothing was collected" in stderr
    assert json.loads(stdout)["dry_run"] is True
    assert not (tmp_path / "out.jsonl").exists()


def test_no_running_servers_are_an_infrastructure_problem(rows: str, here: InProcess) -> None:
    """The message names the command that starts servers."""
    status, _, stderr = here(*NO_SERVE, "-i", rows)

    assert status == 3
    assert "gym env start" in stderr


def test_servers_that_do_not_start_are_an_infrastructure_problem(tmp_path: Path, rows: str, here: InProcess) -> None:
    """It is neither a usage error nor a failed rollout."""
    model = model_file(tmp_path, {"text": "It is 4."})
    elsewhere = "+policy_model.responses_api_models.scripted_model.host=8.8.8.8"

    status, stdout, stderr = here(*ARITHMETIC, "--config", model, "-i", rows, elsewhere, "--json")

    assert status == 3, stderr
    assert json.loads(stdout)["exit_status"] == 3
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ("eval rum", 2, "Did you mean `run`?"),
        ("evl", 2, "Did you mean `eval`?"),
        ("eval run --environmnt x", 2, "Did you mean `--environment`?"),
        ("eval run --environment arithmetik", 2, "try: arithmetic"),
        ("eval run", 2, "there is no server instance to start"),
        ("eval run --environment arithmetic --model-type scripted_model --split train", 2, "--split"),
        ("env validate +config_paths=nope.yaml", 1, "config_paths"),
        ("env validate --config nope.yaml", 1, "nope.yaml"),
        ("eval profile rows.jsonl", 2, "Did you mean `--rollouts rows.jsonl`?"),
        ("eval run +policy_api_key=****", 2, "stands for a secret that is not printed"),
        ("eval run --model-api-key ****", 2, "stands for a secret that is not printed"),
        ("env validate --config misspelt.yaml", 1, "write resources_servers in place of resource_servers"),
        ("env validate --environment quiz --model-type openai_model --model m", 2, "resources_servers/quiz"),
        ("env validate --environment arithmetic --model-type openai_model --model m", 0, "needs policy_base_url, "),
    ],
)
def test_a_mistake_gets_one_clear_error(here: InProcess, words: str, status: int, message: str) -> None:
    """The error has location, cause and fix, and no traceback."""
    Path("rows.jsonl").touch()
    Path("misspelt.yaml").write_text("a: {resource_servers: {quiz: {entrypoint: app.py, domain: math}}}")
    ended, _, stderr = here(*words.split())

    assert ended == status, stderr
    assert message in stderr


def test_a_misspelt_field_is_reported_with_its_line(tmp_path: Path, here: InProcess) -> None:
    """The config class of the server knows its fields, so a typo must not surface at run time."""
    config = tmp_path / "agent.yaml"
    lines = [
        "config_paths: [resources_servers/arithmetic/configs/arithmetic.yaml]",
        "arithmetic_simple_agent:",
        "  responses_api_agents:",
        "    simple_agent:",
        "      max_step: 3",
        "      model_server: {type: responses_api_models, name: policy_model}",
    ]
    config.write_text("\n".join(lines))

    without = "~arithmetic_simple_agent.responses_api_agents.simple_agent.max_steps"
    status, _, stderr = here("env", "validate", "--config", str(config), without)

    assert status == 0, stderr
    assert "agent.yaml:5:7: 'max_step' is not a field of SimpleAgentConfig — did you mean 'max_steps'?" in stderr


def test_a_value_of_the_wrong_type_is_an_error_with_its_place(tmp_path: Path, here: InProcess) -> None:
    """The error must come before servers start."""
    config = tmp_path / "agent.yaml"
    config.write_text(
        "config_paths: [resources_servers/arithmetic/configs/arithmetic.yaml]\n"
        "arithmetic_simple_agent:\n  responses_api_agents:\n    simple_agent:\n      max_steps: many\n"
    )

    status, _, stderr = here("env", "validate", "--config", str(config))

    assert status == 1
    assert "agent.yaml:5:" in stderr
    assert "max_steps" in stderr


def test_validate_and_resolve_start_nothing_and_hide_secrets(tmp_path: Path, here: InProcess) -> None:
    """A pre-flight check that is safe to paste into an issue."""
    words = ("--environment", "arithmetic", "--model-type", "openai_model")
    model = ("--model-url", "http://127.0.0.1:1/v1", "--model-api-key", "sk-very-secret", "-m", "m")

    _, valid, _ = here("env", "validate", *words, "--json")
    status, shown, stderr = here("env", "resolve", *words, *model)

    assert json.loads(valid)["valid"] is True
    assert status == 0, stderr
    assert "sk-very-secret" not in shown + stderr
    assert not list(tmp_path.iterdir())


def test_help_and_version_work_without_a_configuration(here: InProcess) -> None:
    """New users type these first."""
    assert "eval" in here("--help")[1]
    assert "--num-repeats" in here("eval", "run", "--help")[1]
    assert here("--version")[1].startswith("nemo-gym")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (AgentFailed("no metrics"), 1),
        (ConfigError("a key is wrong"), 2),
        (UsageError("a flag is wrong"), 2),
        (DataError("a row is wrong"), 2),
        (PromptError("a prompt is wrong"), 2),
        (ResumeRefused("another run"), 2),
        (StoreError("the disk is full"), 3),
        (ServerUnreachable("gone"), 3),
        (NoRunFound("no servers are running"), 3),
        (ServerDidNotStart("no answer"), 3),
        (FileProblem("the disk is full"), 3),
        (CommandInterrupted("before the start"), 130),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, GymError) else str(value),
)
def test_an_error_has_the_exit_status_that_is_documented(error: GymError, status: int) -> None:
    """Scripts decide by it whether to correct the command, to alert an operator or to try again."""
    assert status_of(error) == status
