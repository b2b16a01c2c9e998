"""The body of `gym train demo`: a tiny transformer learns to use a tool, by GRPO through real servers. Needs torch.

Each step collects rollouts from the environment `ask_then_answer` through its agent, tool and verifier, checks them
with the gates, updates the weights and gives them to the policy server. Nothing is downloaded.
"""

import copy
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from statistics import fmean

import torch
from torch import nn

from nemo_gym.config.search_roots import _resolve_under_cwd_or_install
from nemo_gym.journal import read_rows
from nemo_gym.training.gates import StepCheck, check_step
from nemo_gym.training.grpo import logprobs_of_samples, update_policy, with_advantages
from nemo_gym.training.sessions import Gym, session
from nemo_gym.training.tiny_model import MAX_TOKENS, TinyTransformer, WordTokenizer, parse_turn
from nemo_gym.training.torch_policy import TorchPolicy, serve_policy
from nemo_gym.training.types import Rollout
from nemo_gym.wire.stored_rollout import Row

CONFIG_PATHS = (
    "resources_servers/ask_then_answer/configs/ask_then_answer.yaml",
    "responses_api_models/torch_model/configs/torch_model.yaml",
)
EXAMPLE_ROWS = "resources_servers/ask_then_answer/data/example.jsonl"
WINDOW = 10
"""Steps over which the mean reward is reported."""
TARGET_REWARD = 0.97
"""Mean reward of the last steps at which the demo ends early."""


@dataclass(frozen=True)
class DemoSettings:
    """Settings of a run; the defaults reach the target in about 40 steps."""

    seed: int = 0
    max_steps: int = 100
    group_size: int = 16
    learning_rate: float = 3e-3
    epochs: int = 4
    stop_early: bool = True


@dataclass(frozen=True, slots=True)
class DemoStep:
    """One training step."""

    step: int
    reward: float
    asked: float
    """Fraction of the rollouts that called the tool."""
    rollouts: int
    failed: int
    """Number of rollouts without a score."""
    tokens: int
    """Number of tokens trained on."""
    seconds: float
    """Since the start of the run."""
    parity_max: float
    broken_boundaries: int


@dataclass
class DemoRun:
    """The steps of a run so far; complete or interrupted."""

    settings: DemoSettings
    started: float = field(default_factory=time.monotonic)
    steps: list[DemoStep] = field(default_factory=list)
    last_rollouts: list[Rollout] = field(default_factory=list)

    @property
    def rewards(self) -> list[float]:
        return [step.reward for step in self.steps]

    @property
    def has_learned(self) -> bool:
        """True if the mean reward of the last steps has reached the target."""
        return len(self.steps) >= 2 * WINDOW and fmean(self.rewards[-WINDOW:]) >= TARGET_REWARD

    def summary(self) -> dict[str, float | int | None]:
        """Return the figures of the run."""
        return {
            "reward_first_10": round(fmean(self.rewards[:WINDOW]), 4) if self.steps else None,
            "reward_last_10": round(fmean(self.rewards[-WINDOW:]), 4) if self.steps else None,
            "steps": len(self.steps),
            "seconds": round(self.steps[-1].seconds if self.steps else time.monotonic() - self.started, 1),
            "parity_max": max((step.parity_max for step in self.steps), default=None),
            "broken_boundaries": sum(step.broken_boundaries for step in self.steps),
        }


OnStep = Callable[[DemoRun], None]
ChangeRewards = Callable[[list[Rollout]], list[Rollout]]
PushWeights = Callable[[TorchPolicy, nn.Module, int], Awaitable[None] | None]


def push_weights(policy: TorchPolicy, model: nn.Module, version: int) -> None:
    """Copy the weights into the engine."""
    policy.update(model, version=version)


def demo_rows() -> list[Row]:
    """Return one row for each digit, so that a step rewards no digit more than another."""
    example = next(iter(read_rows(_resolve_under_cwd_or_install(EXAMPLE_ROWS))))
    return [{**example, "digit": digit} for digit in range(10)]


def demo_policy(model: nn.Module, seed: int) -> TorchPolicy:
    """Serve the demo's model."""
    tokenizer = WordTokenizer()
    return serve_policy(
        model, tokenizer, parse=parse_turn, end_ids=[tokenizer.ask_token_id], max_tokens=MAX_TOKENS, seed=seed
    )


def seeded_model(seed: int) -> TinyTransformer:
    """Return a new model; the seed sets its weights."""
    torch.manual_seed(seed)
    return TinyTransformer()


async def run_demo(
    run: DemoRun,
    on_step: OnStep = lambda _: None,
    *,
    change_rewards: ChangeRewards = lambda rollouts: rollouts,
    push: PushWeights = push_weights,
) -> None:
    """Train until the target or the last step; `run` has the steps at any time.

    `change_rewards` and `push` exist for the negative controls: shuffled rewards must not learn, and a skipped push
    must fail the gates.

    Raises:
        GateFailed, ParityError: a step did not train on what the policy generated.
    """
    settings = run.settings
    model = seeded_model(settings.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.0)
    rows = demo_rows()
    order = random.Random(settings.seed)
    with demo_policy(model, settings.seed) as policy:
        async with session({"config_paths": list(CONFIG_PATHS)}, policy=policy) as gym:
            for number in range(settings.max_steps):
                sampled_before = policy.engine.tokens_generated
                rollouts = await collect_step(gym, order.sample(rows, len(rows)), settings.group_size)
                check = check_rollouts(model, rollouts, number, policy.engine.tokens_generated - sampled_before)
                check.require(f"step {number}")
                update_policy(model, optimizer, with_advantages(change_rewards(rollouts)), epochs=settings.epochs)
                async with gym.weights(number + 1):
                    push(policy, model, number + 1)
                run.last_rollouts = rollouts
                run.steps.append(_describe_step(run, number, rollouts, check))
                on_step(run)
                if settings.stop_early and run.has_learned:
                    return


async def collect_step(gym: Gym, rows: Iterable[Row], group_size: int) -> list[Rollout]:
    """Return the rollouts of one step, `group_size` for each row."""
    async with aclosing(gym.stream(rows, group_size=group_size)) as stream:
        return [rollout async for rollout in stream]


def check_rollouts(model: nn.Module, rollouts: list[Rollout], version: int, tokens_generated: int) -> StepCheck:
    """Apply the gates, with the log-probs of all samples computed in one batch."""
    samples = [sample for rollout in rollouts for sample in rollout.samples]
    logprobs = logprobs_of_samples(copy.deepcopy(model).eval(), samples)
    return check_step(rollouts, lambda sample: logprobs[id(sample)], version=version, tokens_generated=tokens_generated)


def _describe_step(run: DemoRun, number: int, rollouts: list[Rollout], check: StepCheck) -> DemoStep:
    scored = [rollout for rollout in rollouts if rollout.reward is not None]
    return DemoStep(
        step=number,
        reward=fmean(rollout.reward or 0.0 for rollout in scored) if scored else 0.0,
        asked=fmean(bool(rollout.result.get("asked")) for rollout in scored) if scored else 0.0,
        rollouts=len(rollouts),
        failed=len(rollouts) - len(scored),
        tokens=check.parity.tokens,
        seconds=round(time.monotonic() - run.started, 2),
        parity_max=check.parity.max_gap,
        broken_boundaries=check.broken_boundaries,
    )
