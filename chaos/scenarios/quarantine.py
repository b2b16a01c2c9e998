"""Crash cells repeatedly: the server that does it gets a separate process, and the other servers go on."""

import random
from pathlib import Path

from chaos.evaluation import BrokenPromise
from chaos.faulty_server import BLOCKS, CRASHES, FAULTY, FaultyEvaluation


def run_seed(folder: Path, seed: int) -> str:
    """Crash or block cells with three or four different rows of one server."""
    chance = random.Random(seed)
    faults = {task: chance.choice((*CRASHES, *CRASHES, *BLOCKS)) for task in range(chance.choice((2, 3)))}
    cells, attempts = chance.choice((1, 2)), chance.choice((1, 1, 2))
    job = FaultyEvaluation(
        folder,
        faults,
        tasks=6,
        overrides=["+blocked_cell_timeout_seconds=2", f"++num_cells={cells}", f"--max-attempts={attempts}"],
    )
    status, _ = job.run()
    if status != 1:
        raise BrokenPromise(f"the run with {faults} ended with status {status}:\n{job.log_tail()}")
    job.check_results()
    if f"{FAULTY} ended a cell 2 times" not in (folder / "log.txt").read_text():
        raise BrokenPromise(f"the server was not quarantined:\n{job.log_tail()}")
    return f"{', '.join(faults.values())} in {cells} cells, status {status}"
