"""The TRL tutorial runs as it is written, and TRL trains on the engine's tokens."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="trl is not installed: python3 dev.py train-trl")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "train-with-trl.md"
GENERATION = re.compile(r"^generation (\d+): reward ([0-9.]+), parity ([0-9.e+-]+)$", re.MULTILINE)

pytestmark = pytest.mark.timeout(900)


def run_program(folder: Path, generations: int) -> list[tuple[float, float]]:
    """Run the program of the page; return the reward and the parity of each generation."""
    (program,) = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    env = {**os.environ, "GENERATIONS": str(generations), "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=env, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [(float(reward), float(parity)) for _, reward, parity in GENERATION.findall(done.stdout)]


def test_the_program_of_the_page_trains_and_the_log_probs_agree_after_each_update(tmp_path: Path) -> None:
    """The parity gate of the program would end it if a weight push were lost or a token changed."""
    generations = run_program(tmp_path, int(os.environ.get("GYM_TRL_GENERATIONS", "4")))

    assert len(generations) == int(os.environ.get("GYM_TRL_GENERATIONS", "4"))
    assert max(parity for _, parity in generations) < 1e-4
