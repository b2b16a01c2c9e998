"""Stored rollouts verified again by a resources server that runs in this process."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import HTTPException
from fastapi.responses import PlainTextResponse
from omegaconf import OmegaConf
from pydantic import ConfigDict, PrivateAttr, ValidationError

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import ConfigError
from nemo_gym.judge import JudgeError
from nemo_gym.rollout_reverification import (
    Reverification,
    ReverificationResult,
    RolloutReverificationConfig,
    StoredRollouts,
)
from nemo_gym.rollouts.scoring_rules import find_verifiers
from nemo_gym.server_utils import ServerClient
from nemo_gym.transport import in_process

HOST, PORT = "verifier.test", 4711
REFERENCE = {"type": "resources_servers", "name": "grader"}
CONFIG: dict[str, Any] = {
    "head_server": {"host": HOST, "port": 1},
    "grader": {"resources_servers": {"grader": {"entrypoint": "app.py", "host": HOST, "port": PORT}}},
    "solver": {
        "responses_api_agents": {
            "agent": {"entrypoint": "app.py", "host": HOST, "port": 2, "resources_server": REFERENCE}
        }
    },
}


class Grading(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow")

    expected: str


class GradedResponse(Grading, BaseVerifyResponse):
    pass


class GraderConfig(BaseResourcesServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS


class Grader(SimpleResourcesServer):
    """Right when the response's id is the expected one; does worse things when told to by name."""

    config: BaseResourcesServerConfig
    _asked: list[str] = PrivateAttr(default_factory=list)

    async def verify(self, body: Grading) -> GradedResponse:
        self._asked.append(body.response.id)
        if body.response.id == "judge":
            raise JudgeError("the judge is down")
        if body.response.id == "crash":
            raise HTTPException(422, "cannot grade this")
        if body.response.id == "html":
            return PlainTextResponse("<html>")  # type: ignore[return-value]
        return GradedResponse(**body.model_dump(), reward=float(body.response.id == body.expected))

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return {"seen_by_the_server": sum(map(len, tasks))}


def response(name: str) -> dict[str, Any]:
    answer = {"type": "output_text", "text": "x", "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [answer]}
    fixed = {"created_at": 0.0, "model": "m", "object": "response", "tools": [], "tool_choice": "auto"}
    return {"id": name, "output": [message], "parallel_tool_calls": True, **fixed}


def place(task: int, rollout: int = 0) -> dict[str, Any]:
    return {"_ng_task_index": task, "_ng_rollout_index": rollout, "agent_ref": {"name": "solver"}}


def config_for(task: int, expected: str) -> dict[str, Any]:
    return {**place(task), "responses_create_params": {"input": "?"}, "expected": expected}


def play_run(task: int, name: str, **fields: Any) -> dict[str, Any]:
    return {**config_for(task, "old"), "response": response(name), "reward": 0.25, **fields}


class Run:
    """The files of a run and the server that verifies it."""

    def __init__(self, folder: Path, grader: Grader) -> None:
        self.folder = folder
        self.grader = grader

    def write(self, name: str, rows: list[dict[str, Any]]) -> None:
        (self.folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def read(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def rewards(self, name: str = "again.jsonl") -> dict[int, float]:
        return {row["_ng_task_index"]: row["reward"] for row in self.read(name)}

    def job(self, **options: Any) -> Reverification:
        files = {
            "rollouts_jsonl_fpath": str(self.folder / "run.jsonl"),
            "materialized_inputs_jsonl_fpath": str(self.folder / "run_materialized_inputs.jsonl"),
            "output_jsonl_fpath": str(self.folder / "again.jsonl"),
        }
        config = RolloutReverificationConfig.model_validate({**files, **options})
        stored = StoredRollouts(
            Path(config.rollouts_jsonl_fpath),
            Path(config.materialized_inputs_jsonl_fpath),
            judge_failed_only=config.judge_failed_only,
        )
        return Reverification(config, stored, find_verifiers(CONFIG, stored.agents))

    async def reverify(self, **options: Any) -> ReverificationResult:
        job = self.job(**options)
        job.check_output()
        client = self.client()
        await job.check_modes(client)
        return await job.run(client)

    def client(self) -> ServerClient:
        config = OmegaConf.create(CONFIG)
        return ServerClient(head_server_config=BaseServerConfig(host=HOST, port=1), global_config_dict=config)


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    kind: type[BaseResourcesServerConfig] = getattr(request, "param", GraderConfig)
    config = kind(host=HOST, port=PORT, entrypoint="app.py", name="grader")
    client = ServerClient(
        head_server_config=BaseServerConfig(host=HOST, port=1), global_config_dict=OmegaConf.create(CONFIG)
    )
    grader = Grader(config=config, server_client=client)
    in_process.mount(HOST, PORT, grader.setup_webserver())
    made = Run(tmp_path, grader)
    made.write("run_materialized_inputs.jsonl", [config_for(0, "a"), config_for(1, "b"), config_for(2, "c")])
    made.write("run.jsonl", [play_run(2, "c"), play_run(0, "wrong"), play_run(1, "b")])
    yield made
    in_process.unmount(HOST, PORT)


@pytest.mark.asyncio
async def test_every_stored_response_gets_a_new_verdict(run: Run) -> None:
    """A mended verifier, without a single model call."""
    done = await run.reverify()

    assert run.rewards() == {0: 0.0, 1: 1.0, 2: 1.0}
    assert done.tally.scored == 3
    rows = {row["_ng_task_index"]: row for row in run.read("again.jsonl")}
    assert rows[1]["expected"] == "b", "the input counts, not what the rollout says of it"
    assert rows[1]["agent_ref"] == {"name": "solver"}
    (entry,) = json.loads((run.folder / "again_aggregate_metrics.json").read_text())
    assert entry["agent_ref"] == {"name": "solver"}
    assert entry["agent_metrics"]["seen_by_the_server"] == 3
    assert run.rewards("run.jsonl") == {0: 0.25, 1: 0.25, 2: 0.25}, "the rollouts themselves are untouched"


@pytest.mark.asyncio
@pytest.mark.parametrize(("unreadable", "fields"), [("c", {"response": None}), ("html", {})])
async def test_a_verifier_that_fails_gives_a_failure_and_no_reward(
    run: Run, unreadable: str, fields: dict[str, Any]
) -> None:
    """The others get their verdict."""
    run.write("run.jsonl", [play_run(0, "crash"), play_run(1, "b"), play_run(2, unreadable, **fields)])

    done = await run.reverify()

    assert run.rewards() == {1: 1.0}
    assert done.tally.failed == {"verifier_error": 2}
    failures = run.read("again_failures.jsonl")
    assert {row["_ng_failure"]["whom"] for row in failures} == {"grader"}
    assert not [row for row in failures if "reward" in row]
    (entry,) = done.entries
    assert entry["attrition"]["failed_by_kind"] == {"verifier_error": 2}


@pytest.mark.asyncio
@pytest.mark.parametrize("run", [BaseResourcesServerConfig], indirect=True)
async def test_a_server_that_may_need_its_session_is_refused_without_force(run: Run) -> None:
    """A verdict without the state it depends on is a wrong verdict."""
    with pytest.raises(ConfigError, match=r"grader \(unknown\)"):
        await run.reverify()
    assert not (run.folder / "again.jsonl").exists()

    await run.reverify(force=True)

    assert len(run.read("unsafe_again.jsonl")) == 3
    assert not (run.folder / "again.jsonl").exists()


@pytest.mark.asyncio
async def test_an_earlier_output_is_neither_mixed_with_nor_lost(run: Run) -> None:
    """Which of the three is meant has to be said."""
    await run.reverify(limit=1)
    assert len(run.read("again.jsonl")) == 1

    with pytest.raises(ConfigError, match="the output already exists"):
        await run.reverify()
    resumed = await run.reverify(resume_from_cache=True)
    assert (resumed.tally.scored, resumed.there_before) == (2, 1)
    assert run.grader._asked.count("c") == 1, "what is verified is not verified again"

    overwritten = await run.reverify(overwrite=True)
    assert overwritten.tally.scored == 3
    assert len(run.read("again.jsonl")) == 3


@pytest.mark.asyncio
async def test_only_failed_judgements_are_made_up_for(run: Run) -> None:
    """The judge was down for an hour: the rest of the night stays as it is."""
    run.write("run.jsonl", [play_run(0, "wrong"), play_run(1, "other")])
    failed = {"_ng_failure_class": "judge_failed"}
    run.write(
        "run_failures.jsonl", [play_run(2, "c", **failed), play_run(2, "c", **failed), play_run(1, "b", **failed)]
    )

    done = await run.reverify(judge_failed_only=True)

    assert run.rewards() == {0: 0.25, 1: 0.25, 2: 1.0}
    assert (done.tally.scored, done.copied) == (1, 2)
    assert run.grader._asked == ["c"]


@pytest.mark.asyncio
async def test_verdicts_may_be_appended_to_the_run_itself(run: Run) -> None:
    """Then the run is complete, as if the judge had never failed."""
    run.write("run.jsonl", [play_run(0, "wrong")])
    run.write("run_failures.jsonl", [play_run(2, "c", _ng_failure_class="judge_failed")])
    itself = str(run.folder / "run.jsonl")

    await run.reverify(judge_failed_only=True, append=True, output_jsonl_fpath=itself)
    again = await run.reverify(judge_failed_only=True, append=True, output_jsonl_fpath=itself)

    assert run.rewards("run.jsonl") == {0: 0.25, 2: 1.0}
    assert again.tally.total == 0, "a second time there is nothing left to do"


@pytest.mark.asyncio
async def test_a_judge_that_fails_again_stays_a_failure(run: Run) -> None:
    """And is tried again next time."""
    run.write("run_failures.jsonl", [play_run(1, "judge", _ng_failure_class="judge_failed")])
    run.write("run.jsonl", [play_run(0, "wrong")])

    done = await run.reverify(judge_failed_only=True)

    assert done.tally.failed == {"judge_failed": 1}
    assert run.rewards() == {0: 0.25}

    await run.reverify(judge_failed_only=True, resume_from_cache=True)

    attempts = [row.get("_ng_attempt_index", 0) for row in run.read("again_failures.jsonl")]
    assert attempts == [0, 1]


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume_from_cache": True}])
def test_the_rollouts_are_never_written_over(run: Run, options: dict[str, Any]) -> None:
    """A night's work is one mistyped name away."""
    job = run.job(output_jsonl_fpath=str(run.folder / "run.jsonl"), **options)

    with pytest.raises(ConfigError, match="the output is the same file"):
        job.check_output()


def test_overwriting_never_removes_the_inputs(run: Run) -> None:
    """Files beside the output are removed with it; the inputs may be one of them."""
    run.write("again_materialized_inputs.jsonl", [config_for(0, "a"), config_for(1, "b"), config_for(2, "c")])
    inputs = str(run.folder / "again_materialized_inputs.jsonl")

    with pytest.raises(ConfigError, match="would remove the inputs"):
        run.job(materialized_inputs_jsonl_fpath=inputs, overwrite=True).check_output()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"append": True}, "append works only with judge_failed_only"),
        ({"append": True, "judge_failed_only": True, "overwrite": True}, "exclude each other"),
        ({"limit": -1}, "limit"),
        ({"num_samples_in_parallel": 0}, "num_samples_in_parallel"),
    ],
)
def test_options_that_contradict_each_other_are_refused(run: Run, options: dict[str, Any], reason: str) -> None:
    """Before anything is read."""
    with pytest.raises(ValidationError, match=reason):
        run.job(**options)
