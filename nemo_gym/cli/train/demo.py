"""Train a tiny transformer to use a tool, on this machine's CPU, in a few minutes and without downloads.

The model learns by GRPO through a real agent, tool and verifier: "ask a tool for the digit, then say it". The curve is
drawn while it learns; the output folder gets the steps, the last rollouts and the curve as PNG and HTML. Needs the
extra `train`.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:  # imports torch
    from nemo_gym.training.demo import DemoRun

DEFAULT_OUTPUT = "results/train-demo"
DEFAULT_STEPS = 100
INTERRUPTED = 130
BARS = " ▁▂▃▄▅▆▇█"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags = options.FlagGroup(parser)
    flags.integer("--seed", "seed of the weights and of sampling", default=0)
    flags.integer("--steps", f"maximum number of training steps (default: {DEFAULT_STEPS})", default=DEFAULT_STEPS)
    flags.text("-o --output", "DIR", f"folder of the results (default: {DEFAULT_OUTPUT})")
    flags.json()


def run(args: argparse.Namespace) -> int:
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(
            "the package torch is not installed", where="gym train demo", fix="pip install 'nemo-gym[train]'"
        )
    if args.steps < 1:
        raise options.UsageError(f"--steps must be at least 1, not {args.steps}")
    output.show_status("loading torch and starting the servers")
    import asyncio

    import torch

    from nemo_gym.training.demo import DemoRun, DemoSettings, run_demo
    from nemo_gym.training.demo_files import DemoFiles

    torch.set_num_threads(1)  # the tensors are tiny, and the servers need the other cores
    files = DemoFiles(Path(args.output or DEFAULT_OUTPUT))
    demo = DemoRun(DemoSettings(seed=args.seed, max_steps=args.steps))

    show = _status_line() if sys.stderr.isatty() else output.ThrottledNotice()

    def on_step(progress: DemoRun) -> None:
        files.append_newest_step(progress)
        show(progress_line(progress))

    status, written = 0, list[Path]()
    with files:
        try:
            asyncio.run(run_demo(demo, on_step))
        except KeyboardInterrupt:
            status = INTERRUPTED
        finally:
            output.show_status("")
            with suppress(KeyboardInterrupt):  # a second Ctrl-C while the results are written
                written = files.write_results(demo)
    _report(demo, written, as_json=args.json, interrupted=status == INTERRUPTED)
    return status


def _report(demo: DemoRun, written: list[Path], *, as_json: bool, interrupted: bool) -> None:
    """Print the figures of the run: the curve and the files to stderr with --json, and one JSON line to stdout."""
    import orjson

    say = output.notify if as_json else output.write
    summary = demo.summary()
    if interrupted:
        output.notify(f"interrupted after {summary['steps']} steps; the results so far are written")
    if demo.steps:
        say(f"reward {curve(demo.rewards, width=60)} {demo.rewards[-1]:.2f}")
        say(
            f"mean reward {summary['reward_first_10']:.3f} in the first 10 steps, {summary['reward_last_10']:.3f} in "
            f"the last 10, after {summary['steps']} steps and {summary['seconds']:.0f} s"
        )
    for path in written:
        say(str(path))
    if as_json:
        output.write(orjson.dumps(summary).decode())


def _status_line() -> Callable[[str], None]:
    """Return a function that replaces the status line, cut to the width of the terminal."""
    return lambda text: output.show_status(output.clip(text, shutil.get_terminal_size().columns - 1))


def progress_line(demo: DemoRun) -> str:
    """Return the state of a run as one line: the curve, the reward of the last step, and how it was checked."""
    step = demo.steps[-1]
    return (
        f"step {step.step + 1}  {curve(demo.rewards, width=40)}  reward {step.reward:.2f}  asked {step.asked:.2f}  "
        f"parity {step.parity_max:.0e}  {step.seconds:.0f} s"
    )


def curve(rewards: list[float], *, width: int) -> str:
    """Draw rewards from 0 to 1 as a line of at most `width` characters, each the mean of some steps."""
    count = min(width, len(rewards))
    starts = [index * len(rewards) // count for index in range(count + 1)]
    means = [sum(rewards[start:end]) / (end - start) for start, end in pairwise(starts) if end > start]
    return "".join(BARS[round(min(1.0, max(0.0, mean)) * (len(BARS) - 1))] for mean in means)
