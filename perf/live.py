"""Measure the CPU time that the live view adds to a rollout, and of drawing it.

    python -m perf.live [ROLLOUTS]

The floor is the tally and the list of rollouts in flight, which a collection keeps in any case. Drawing is measured
over 100,000 tasks, half an hour into a run, on a screen 100 characters wide.
"""

import json
import sys
import time
from typing import Any

from nemo_gym.cli.terminal.live import LiveView
from nemo_gym.cli.terminal.progress import MEAN_PAUSE_FACTOR, Progress, TimedInFlight
from nemo_gym.rollouts.collect import InFlight
from nemo_gym.rollouts.outcome import Job, OutcomeCounts, ScoredRollout
from nemo_gym.rollouts.plan import PlanSummary
from nemo_gym.wire.stored_rollout import RolloutKey

ROLLOUTS = 100_000
RUNS = 3
MAX_MICROSECONDS = 10.0
MAX_DRAWING_SHARE = 0.02
"""Share of one processor; the screen is drawn four times a second."""


def jobs(count: int) -> list[Job]:
    rows = [{"_ng_task_index": n, "_ng_rollout_index": 0, "agent_ref": {"name": "agent"}} for n in range(count)]
    return [Job(RolloutKey(n, 0), row) for n, row in enumerate(rows)]


def process_jobs(work: list[Job], in_flight: InFlight, report: Any) -> float:
    """Return the CPU seconds of starting, ending and reporting every job."""
    record = {"reward": 1.0, "response": {"usage": {"input_tokens": 90, "output_tokens": 10, "total_tokens": 100}}}
    began = time.process_time()
    for job in work:
        with in_flight.sending(job):
            pass
        report(ScoredRollout(job, record))
    return time.process_time() - began


def drawing_seconds(progress: Progress) -> float:
    """Return the CPU seconds of drawing for one second."""
    view = LiveView(progress)
    began = time.process_time()
    for _ in range(40):
        progress.take_sample()
        view.rendered_text(100)
    # The mean is computed rarely; its share is added as a constant.
    return (time.process_time() - began) / 10 + 1 / MEAN_PAUSE_FACTOR


def measure(rollouts: int = ROLLOUTS) -> dict[str, float]:
    work = jobs(rollouts)
    floor, with_view, drawing = [], [], []
    for _ in range(RUNS):
        floor.append(process_jobs(work, InFlight(), OutcomeCounts()))
        progress = Progress(TimedInFlight())
        progress.on_plan(PlanSummary(total=rollouts, to_run=rollouts))
        with_view.append(process_jobs(work, progress.in_flight, progress))
        drawing.append(drawing_seconds(progress))
    added = min(with_view) - min(floor)
    return {
        "us_per_rollout": 1e6 * added / rollouts,
        "floor_us_per_rollout": 1e6 * min(floor) / rollouts,
        "drawing_share": min(drawing),
    }


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:2])), indent=2))
