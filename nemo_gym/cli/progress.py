"""How a collection is going: one line that updates on a terminal, a plain line now and then elsewhere."""

import sys
import time

from nemo_gym.keys import TASK_INDEX_KEY_NAME
from nemo_gym.metrics.intervals import ClusteredMean
from nemo_gym.rollouts.outcome import REWARD_KEY, Outcome, Scored
from nemo_gym.rollouts.tally import Tally

TERMINAL_PAUSE, PLAIN_PAUSE = 0.1, 5.0


class Progress:
    """An observer that counts outcomes and says so."""

    def __init__(self, total: int | None, *, quiet: bool = False) -> None:
        self.tally = Tally()
        self.rewards = ClusteredMean()
        self._total = total
        self._quiet = quiet
        self._live = sys.stderr.isatty()
        self._began = self._told = time.monotonic()

    def __call__(self, outcome: Outcome) -> None:
        self.tally(outcome)
        if isinstance(outcome, Scored):
            self.rewards.add(outcome.job.row.get(TASK_INDEX_KEY_NAME), float(outcome.record[REWARD_KEY]))
        now = time.monotonic()
        if not self._quiet and now - self._told >= (TERMINAL_PAUSE if self._live else PLAIN_PAUSE):
            self._told = now
            self._show(now)

    def _show(self, now: float, end: str = "") -> None:
        mean = self.rewards.mean()
        done = f"{self.tally.total}/{self._total}" if self._total else str(self.tally.total)
        rate = self.tally.total / max(now - self._began, 1e-9)
        text = f"{done} · {self.tally} · {rate:.1f}/s" + (f" · mean {mean.value:.3f}" if mean else "")
        sys.stderr.write(f"\r\x1b[K{text}{end}" if self._live else f"{text}\n")
        sys.stderr.flush()

    def finish(self) -> None:
        """Leave the last state on the screen."""
        if not self._quiet:
            self._show(time.monotonic(), end="\n")
