"""Measure the CPU time that the live view adds to a rollout, and of drawing it.

    python -m perf.live [ROLLOUTS]

The floor is the tally and the list of rollouts in flight, which a collection keeps in any case. Drawing is measured
over 100,000 tasks, half an hour into a run, on a screen 100 characters wide.
"""

import json
import sys
import time
from typing import Any

from nemo_gym.cli.live import View
from nemo_gym.cli.progress import MEAN_SHARE, Progress, TimedFlights
from nemo_gym.rollouts.flight import Flights
from nemo_gym.rollouts.job import Job
from nemo_gym.rollouts.key import RolloutKey
from nemo_gym.rollouts.outcome import Scored
from nemo_gym.rollouts.planned import Planned
from nemo_gym.rollouts.tally import Tally

ROLLOUTS = 100_000
RUNS = 3
MAX_MICROSECONDS = 10.0
MAX_DRAWING_SHARE = 0.02
"""Share of one processor; the screen is drawn four times a second."""


def jobs(count: int) -> list[Job]:
    rows = [{"_ng_task_index": n, "_ng_rollout_index": 0, "agent_ref": {"name": "agent"}} for n in range(count)]
    return [Job(RolloutKey(n, 0), row) for n, row in enumerate(rows)]


def process_jobs(work: list[Job], flights: Flights, report: Any) -> float:
    """Return the CPU seconds of starting, ending and reporting every job."""
    record = {"reward": 1.0, "response": {"usage": {"input_tokens": 90, "output_tokens": 10, "total_tokens": 100}}}
    began = time.process_time()
    for job in work:
        with flights.under_way(job):
            pass
        report(Scored(job, record))
    return time.process_time() - began


def drawing_seconds(progress: Progress) -> float:
    """Return the CPU seconds of drawing for one second."""
    view = View(progress)
    began = time.process_time()
    for _ in range(40):
        progress.look()
        view._rendered(100)
    # The mean is computed rarely; its share is added as a constant.
    return (time.process_time() - began) / 10 + 1 / MEAN_SHARE


def measure(rollouts: int = ROLLOUTS) -> dict[str, float]:
    work = jobs(rollouts)
    floor, with_view, drawing = [], [], []
    for _ in range(RUNS):
        floor.append(process_jobs(work, Flights(), Tally()))
        progress = Progress(TimedFlights())
        progress.on_plan(Planned(total=rollouts, to_run=rollouts))
        with_view.append(process_jobs(work, progress.flights, progress))
        drawing.append(drawing_seconds(progress))
    added = min(with_view) - min(floor)
    return {
        "us_per_rollout": 1e6 * added / rollouts,
        "floor_us_per_rollout": 1e6 * min(floor) / rollouts,
        "drawing_share": min(drawing),
    }


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:2])), indent=2))
