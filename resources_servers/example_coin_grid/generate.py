"""Write grids with coins: `python generate.py OUT --rows 40 --seed 0`."""

import random
from typing import Any

from nemo_gym.data.generator_command import run_generator


def row(seed: int, coins: int) -> dict[str, Any]:
    """Build one task. It needs no tools and no prompt: the server adds both when the episode opens."""
    return {"responses_create_params": {"input": []}, "seed": seed, "coins": coins}


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return `count` tasks with different grids."""
    draw = random.Random(seed)
    seeds = draw.sample(range(1_000_000), count)
    return [row(grid, draw.randint(2, 4)) for grid in seeds]


def main() -> None:
    run_generator(rows, __doc__)


if __name__ == "__main__":
    main()
