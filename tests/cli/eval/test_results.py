"""What a run leaves behind: its folder, the responses of failed rollouts, tool errors, costs; and `evaluate`."""

import asyncio
import json
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import nemo_gym
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import ConfigError
from nemo_gym.processes import start_ticks
from nemo_gym.rollout_collection import RolloutCollectionHelper
from nemo_gym.serve.run_registry import RunEntry, RunNotChosen, _open_folder, _write_entry, only_run
from tests.cli.eval.test_run import ARITHMETIC, gym, lines_of, model_file

SERVER = """
from pathlib import Path

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)


class FlakyConfig(BaseResourcesServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS
    broken: str


class Row(BaseVerifyRequest):
    level: int


class Verdict(BaseVerifyResponse):
    level: int
    extracted_answer: str | None = None


class Flaky(SimpleResourcesServer):
    HOSTING = "cell"
    config: FlakyConfig

    def setup_webserver(self):
        app = super().setup_webserver()
        app.post("/divide")(self.divide)
        return app

    async def divide(self) -> dict:
        return {"result": 1 / 0}

    async def verify(self, body: Row) -> Verdict:
        if Path(self.config.broken).exists():
            raise KeyError("no such column")
        return Verdict(**body.model_dump(), reward=1.0)
"""
AGENT = {
    "entrypoint": "app.py",
    "resources_server": {"type": "resources_servers", "name": "flaky"},
    "model_server": {"type": "responses_api_models", "name": "policy_model"},
}
DIVIDE = {"type": "function", "name": "divide", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture
def flaky(tmp_path: Path) -> tuple[str, ...]:
    """The arguments that run an environment whose tool raises, and whose verifier raises while `broken` exists."""
    folder = tmp_path / "tree/resources_servers/flaky"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(SERVER)
    server = {"entrypoint": "app.py", "domain": "other", "broken": str(tmp_path / "broken")}
    blocks = {
        "flaky": {"resources_servers": {"flaky": server}},
        "flaky_agent": {"responses_api_agents": {"simple_agent": AGENT}},
    }
    (tmp_path / "flaky.yaml").write_text(json.dumps(blocks))
    params = {"input": "Divide.", "tools": [DIVIDE]}
    (tmp_path / "flaky.jsonl").write_text(
        "".join(json.dumps({"responses_create_params": params, "level": n}) + "\n" for n in range(3))
    )
    script = [
        {"tool_calls": [{"name": "divide", "arguments": {}}]},
        {"text": "One.", "incomplete": "max_output_tokens"},
    ]
    model = model_file(tmp_path, *script)
    return ("--search-dir", str(tmp_path / "tree"), "--config", str(tmp_path / "flaky.yaml"), "--config", model)


def test_a_failed_verification_keeps_the_response_and_is_scored_later(tmp_path: Path, flaky: tuple[str, ...]) -> None:
    """One bug in verify() once cost all tokens of a run."""
    (tmp_path / "broken").touch()
    run = ("eval", "run", *flaky, "-i", "flaky.jsonl", "-a", "flaky_agent", "-o", "out.jsonl", "--max-attempts", "1")

    done = gym(*run, cwd=tmp_path)

    assert done.returncode == 1, done.stderr
    assert "raised at flaky/app.py:" in done.stdout
    failures = lines_of(tmp_path / "out_failures.jsonl")
    assert [failure["_ng_failure_class"] for failure in failures] == ["verifier_error"] * 3
    for failure in failures:
        assert failure["responses_create_params"]["input"] == "Divide."
        kinds = [item["type"] for item in failure["response"]["output"]]
        assert kinds == ["function_call", "function_call_output", "message"]
        assert failure["response"]["usage"]["total_tokens"] > 0
        assert "reward" not in failure

    still = gym("eval", "reverify", *flaky[:4], "--rollouts", "out.jsonl", "--failed", "-o", "no.jsonl", cwd=tmp_path)
    assert still.returncode == 1, still.stderr
    messages = [line for line in still.stderr.splitlines() if " failed: " in line or " is in use; " in line]
    assert messages, still.stderr
    assert all(line.startswith(("Warning: ", "Error: ")) for line in messages), "as in a run"

    (tmp_path / "broken").unlink()
    again = gym("eval", "reverify", *flaky[:4], "--rollouts", "out.jsonl", "--failed", "-o", "new.jsonl", cwd=tmp_path)

    assert again.returncode == 0, again.stderr
    assert [record["reward"] for record in lines_of(tmp_path / "new.jsonl")] == [1.0] * 3


def test_a_tool_that_raises_is_counted_and_named(tmp_path: Path, flaky: tuple[str, ...]) -> None:
    """A bug of the environment must not become a score without a trace of it."""
    run = ("eval", "run", *flaky, "-i", "flaky.jsonl", "-a", "flaky_agent", "--limit", "2")

    done = gym(*run, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "tool errors  2 × /divide: ZeroDivisionError at flaky/app.py:" in done.stdout
    assert "answers      cut off 2 (100.0 %) · no answer extracted 2 (100.0 %)" in done.stdout
    (record, _) = lines_of(tmp_path / "results/latest/rollouts.jsonl")
    assert [(error["tool"], error["error"]) for error in record["_ng_tool_errors"]] == [("divide", "ZeroDivisionError")]

    strict = gym(*run, "--json", "++flaky.resources_servers.flaky.tool_errors=fail", cwd=tmp_path)

    assert strict.returncode == 1, strict.stderr
    report = json.loads(strict.stdout.replace('"results/', f'"{tmp_path}/results/'))
    assert report["failed"] == {"tool_error": 2}
    for failure in lines_of(Path(report["files"]["failures"])):  # what was generated before the failure is kept
        assert [item["type"] for item in failure["response"]["output"]] == ["function_call"]
    assert len(list((tmp_path / "results").glob("2*"))) == 2  # the first run is still there


def test_only_rows_without_a_score_run_again(tmp_path: Path, flaky: tuple[str, ...]) -> None:
    """After a fix, the rows that failed are those of interest."""
    run = ("eval", "run", *flaky, "-i", "flaky.jsonl", "-a", "flaky_agent", "--json", "--max-attempts", "1")
    gym(*run, "--where", "level == 1", "++flaky.resources_servers.flaky.tool_errors=fail", cwd=tmp_path)

    done = gym(*run, "--last-failed", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["total"] == 1
    (record,) = lines_of(tmp_path / "results/latest/rollouts.jsonl")
    assert (record["_ng_task_index"], record["level"]) == (1, 1)


def test_a_maximum_cost_stops_the_run(tmp_path: Path, flaky: tuple[str, ...]) -> None:
    """Prices come from the user: none are built in."""
    run = ("eval", "run", *flaky, "-i", "flaky.jsonl", "-a", "flaky_agent", "--concurrency", "1", "--max-cost", "0.01")
    prices = "+prices={script*: {input: 1000, output: 1000}}"

    refused, unknown, done = (
        gym(*run, *more, cwd=tmp_path) for more in ((), ("+prices={x: {input: 1, output: 1}}",), (prices,))
    )

    assert (refused.returncode, "a maximum cost needs a price table" in refused.stderr) == (2, True)
    assert "prices has no price for the model 'scripted'" in unknown.stdout
    assert done.returncode == 1, done.stderr
    assert "(max_total_cost 0.01)" in done.stdout
    assert " · $0.0" in done.stdout
    assert done.stdout.count("1 scored") == 1


def evaluate_arithmetic(tmp_path: Path, **options: Any) -> Any:
    config = model_file(tmp_path, {"text": "It is 4."})
    return nemo_gym.evaluate("arithmetic", model_type=None, config=[config], **options)


def test_an_evaluation_from_python_returns_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notebooks and tests need no shell."""
    monkeypatch.chdir(tmp_path)
    rows = [
        {"responses_create_params": {"input": f"What is {n} + 2?"}, "expected_answer": n + 2,
         "agent_ref": {"name": "arithmetic_simple_agent"}} for n in range(1, 4)
    ]  # fmt: skip

    result = evaluate_arithmetic(tmp_path, rows=rows, num_repeats=2, tag=["ci"])

    assert result.is_complete and result.mean_reward == pytest.approx(1 / 3)
    assert result.scores["arithmetic_simple_agent"]["reward"]["ci95"][0] < 1 / 3
    assert [record["reward"] for record in result.rollouts] == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    assert {"task": 1, "repeat": 0, "reward": 1.0}.items() <= result.table_rows()[2].items()
    assert result.failures == []
    assert result.output.parent.parent == tmp_path / "results"
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))  # an extra that is not installed here
    assert result.to_pandas() == result.table_rows()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pandas is not installed"):
        result.to_pandas()


async def test_an_evaluation_that_cannot_run_raises_the_error_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message must be as good as on the terminal; and a loop may be running, as in a notebook."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(nemo_gym.EvaluationFailed, match="arithmetik"):
        await nemo_gym.evaluate_async("arithmetik", model_type="scripted_model")
    with pytest.raises(nemo_gym.EvaluationFailed, match="neither a number from 1"):
        await asyncio.to_thread(evaluate_arithmetic, tmp_path, limit="0")
    assert not (tmp_path / "results").exists() or not list((tmp_path / "results").iterdir())


def test_several_models_give_a_table(tmp_path: Path) -> None:
    """Comparing models is the usual reason to evaluate."""
    words = ("eval", "run", "--environment", "arithmetic", "--config", model_file(tmp_path, {"text": "It is 4."}))

    done = gym(*words, "--limit", "2", "--model", "small", "--model", "large", "--json", cwd=tmp_path)
    refused = gym(*ARITHMETIC, "--model", "small", "--model", "large", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["matrix"]["arithmetic_simple_agent"].keys() == {"small", "large"}
    assert [report["model"] for report in result["models"].values()] == ["small", "large"]
    assert (refused.returncode, "--output names one file, but 2 models are given" in refused.stderr) == (2, True)


def test_a_limit_counts_for_each_of_several_environments(tmp_path: Path) -> None:
    """Otherwise the second environment would be missing from the report, without a word."""
    words = ("eval", "run", "--environment", "arithmetic", "--resources-server", "quiz")

    done = gym(*words, "--config", model_file(tmp_path, {"text": "A"}), "--limit", "2", "--json", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"].keys() == {"arithmetic_simple_agent", "quiz_simple_agent"}
    assert json.loads(done.stdout)["scored"] == 4
    listed = gym("runs", "list", cwd=tmp_path).stdout
    assert "arithmetic_simple_agent 0 " in listed and ", quiz_simple_agent " in listed


def test_several_agents_give_a_table_and_a_pair_without_sense_is_refused(tmp_path: Path) -> None:
    """Comparing agents must not end because one of them cannot play this environment."""
    words = ("eval", "run", "--environment", "arithmetic", "--config", model_file(tmp_path, {"text": "It is 4."}))

    done = gym(*words, "--limit", "2", "--agent-type", "gymnasium_agent,simple_agent", "--json", cwd=tmp_path)
    unknown = gym(*words, "--agent-type", "simple_agent,simpel_agent", cwd=tmp_path)

    result = json.loads(done.stdout)
    assert (done.returncode, list(result["matrix"])) == (2, ["simple_agent"])
    assert "gymnasium_agent needs an environment with /reset and /step" in done.stderr
    assert {name: report["exit_status"] for name, report in result["runs"].items()} == {
        "gymnasium_agent": 2,
        "simple_agent": 0,
    }
    assert (unknown.returncode, "try: simple_agent" in unknown.stderr) == (2, True)
    assert "== simple_agent" not in unknown.stderr


def test_stored_runs_are_listed_tagged_and_deleted(tmp_path: Path) -> None:
    """A run that cannot be found again is lost."""
    words = ("eval", "run", "--environment", "arithmetic", "--config", model_file(tmp_path, {"text": "It is 4."}))
    first = gym(*words, "--limit", "2", "--name", "first", "--tag", "a", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "first · arithmetic · scripted_model · 2 tasks × 1 repeat · results/" in first.stderr

    gym("runs", "tag", "first", "b", "--remove", "a", cwd=tmp_path)
    listed = json.loads(gym("runs", "list", "--tag", "b", "--json", cwd=tmp_path).stdout)
    shown = gym("runs", "show", "latest", cwd=tmp_path).stdout
    gym(*words[:-1], model_file(tmp_path, {"text": "It is 5."}), "--limit", "2", "--name", "second", cwd=tmp_path)
    compared = json.loads(gym("runs", "compare", "first", "second", "--json", cwd=tmp_path).stdout)
    printed = gym("runs", "compare", "first", "second", cwd=tmp_path).stdout
    gym("runs", "rm", "second", "--yes", cwd=tmp_path)
    unconfirmed = gym("runs", "rm", "first", cwd=tmp_path)
    gym("runs", "rm", "first", "--yes", cwd=tmp_path)

    assert [(run["name"], run["scored"], run["planned"], run["tags"]) for run in listed] == [("first", 2, 2, ["b"])]
    assert "2 of 2 rollouts scored" in shown and "reward" in shown
    assert compared["tasks"] == 2 and "second against first: " in printed and "2 tasks in both" in printed
    assert unconfirmed.returncode == 2
    assert list((tmp_path / "results").iterdir()) == []


def test_the_python_api_finds_the_run_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default port may belong to a stranger, with servers of the same names."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(
        nemo_gym.server_utils, "get_global_config_dict", lambda: {"head_server": {"host": "127.0.0.1", "port": 11000}}
    )
    addresses: list[tuple[str, int]] = []

    def fetch(host: str, port: int, _seconds: float) -> str:
        addresses.append((host, port))
        return "{}"

    monkeypatch.setattr(nemo_gym.server_utils, "fetch_config_yaml", fetch)
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        own = register(head.getsockname()[1])
        RolloutCollectionHelper().setup_server_client()
        RolloutCollectionHelper().setup_server_client(BaseServerConfig(host="127.0.0.1", port=7))
        register(own + 1 if own < 65535 else own - 1)
        with pytest.raises(RunNotChosen, match="2 runs are running"):
            nemo_gym.ServerClient.load_from_global_config()

    assert addresses == [("127.0.0.1", own), ("127.0.0.1", 7)]


def test_a_process_with_servers_uses_its_own_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection driver runs in the process of its servers; another run on the machine must not disturb it."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    register(11001, os.getppid())
    assert only_run() == RunEntry("127.0.0.1", 11001, os.getppid(), start_ticks(os.getppid()), 1.0)
    register(11000)

    assert only_run() == RunEntry("127.0.0.1", 11000, os.getpid(), start_ticks(os.getpid()), 1.0)


def register(port: int, pid: int | None = None) -> int:
    """Register a run of a process at a port, as `registering` does."""
    pid = pid or os.getpid()
    with _open_folder() as folder:
        _write_entry(folder, f"{pid}-{port}.json", RunEntry("127.0.0.1", port, pid, start_ticks(pid), 1.0))
    return port
