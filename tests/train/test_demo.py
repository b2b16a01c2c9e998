"""`gym train demo` learns through real servers, and its gates catch what must not happen."""

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: python3 dev.py train")

from nemo_gym.training import ParityError, torch_policy  # noqa: E402
from nemo_gym.training.demo import DemoRun, DemoSettings, run_demo  # noqa: E402
from nemo_gym.training.gates import GateFailed  # noqa: E402
from nemo_gym.training.types import Rollout  # noqa: E402

pytestmark = pytest.mark.timeout(600)

GYM = Path(sys.executable).parent / "gym"
SHORT = DemoSettings(seed=0, max_steps=4, stop_early=False)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def train(settings: DemoSettings, **options: Any) -> DemoRun:
    run = DemoRun(settings)
    asyncio.run(run_demo(run, **options))
    return run


def test_the_gates_hold_in_every_step() -> None:
    """Parity, contiguity, versions, and as many tokens trained on as the engine sampled: `run_demo` requires them."""
    run = train(SHORT)

    assert len(run.steps) == 4
    assert max(step.parity_max for step in run.steps) < 1e-4
    assert run.summary()["broken_boundaries"] == 0
    assert all(step.failed == 0 and step.rollouts == 160 for step in run.steps)
    assert any(len(rollout.samples[0].spans) == 2 for rollout in run.last_rollouts), "no rollout has two turns"
    assert {rollout.weight_version for rollout in run.last_rollouts} == {(3, 3)}


def test_the_program_of_the_guide_trains() -> None:
    """Readers copy it; it checks the parity of each step itself."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "train.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(program, names)

    assert len(asyncio.run(names["train"](2))) == 2


def test_a_turn_that_is_tokenised_again_fails_the_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the prompt of the second turn is rendered from text, as a stock engine does."""
    render = torch_policy.render_prompt

    def forget_ids(tokenizer: Any, messages: list[dict[str, Any]], *rest: Any) -> list[int]:
        texts = [{key: value for key, value in message.items() if "token" not in key} for message in messages]
        return render(tokenizer, texts, *rest)

    monkeypatch.setattr(torch_policy, "render_prompt", forget_ids)

    with pytest.raises(GateFailed, match="do not continue the calls before them"):
        train(SHORT)


def test_a_skipped_weight_push_fails_the_gates() -> None:
    """Negative control: the version says that the weights are new, but the engine samples from the old ones."""
    with pytest.raises(ParityError, match="log-probs differ"):
        train(replace(SHORT, max_steps=20), push=lambda *_: None)


def test_a_version_that_does_not_match_the_step_fails_the_gates() -> None:
    """Without the version on each call, stale rollouts would be trained on as if they were new."""

    async def keep_version(_version: int) -> None:
        return None

    def push(policy: Any, model: Any, version: int) -> None:
        policy.update(model, version=version - 1)
        policy.set_version = keep_version

    with pytest.raises(GateFailed, match="weight version of the step"):
        train(SHORT, push=push)


def test_shuffled_rewards_teach_nothing() -> None:
    """Negative control: if the curve rose with rewards of other rollouts, it would not show learning."""
    steps = iter(range(1000))

    def shuffle(rollouts: list[Rollout]) -> list[Rollout]:
        rewards = [rollout.reward for rollout in rollouts]
        random.Random(next(steps)).shuffle(rewards)
        return [replace(rollout, reward=reward) for rollout, reward in zip(rollouts, rewards, strict=True)]

    run = train(DemoSettings(seed=2, max_steps=30, stop_early=False), change_rewards=shuffle)

    assert sum(run.rewards[-10:]) / 10 < 0.5


def test_the_command_learns_and_prints_its_figures_as_one_json_line(tmp_path: Path) -> None:
    """The promise of the demo: from almost no reward to at least 0.95."""
    command = [GYM, "train", "demo", "--seed", "2", "--output", tmp_path, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])

    assert summary["reward_last_10"] >= 0.95
    assert summary["reward_first_10"] < 0.5
    assert summary["parity_max"] < 1e-4
    assert summary["broken_boundaries"] == 0
    assert len((tmp_path / "steps.jsonl").read_text().splitlines()) == summary["steps"]
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "curve.html").read_text()
    assert "<polyline" in page
    assert "http" not in page, "the page loads nothing"


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    """Wait until the condition holds or the process has ended."""
    while not condition() and process.poll() is None:
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue


def test_ctrl_c_leaves_the_results_so_far(tmp_path: Path) -> None:
    """A user who has seen enough keeps the curve, and no server keeps running."""
    command = [GYM, "train", "demo", "--output", tmp_path, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    steps = tmp_path / "steps.jsonl"
    try:
        wait_for(lambda: steps.exists() and steps.read_text().count("\n") >= 2, process)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()

    assert process.returncode == 130, err
    assert json.loads(out.splitlines()[-1])["steps"] >= 2
    assert "the results so far are written" in err
    assert "Traceback" not in err
    assert (tmp_path / "curve.html").exists()
