"""Block a cell permanently: it is ended and restarted, and only rollouts of the server that blocked it may fail."""

import random
from pathlib import Path

from chaos.evaluation import BrokenPromise
from chaos.faulty_server import BLOCKS, FAULTY, FaultyEvaluation


def run_seed(folder: Path, seed: int) -> str:
    """Block the cells with the fault that the seed determines, in one or two rows of one server."""
    chance = random.Random(seed)
    fault = BLOCKS[seed % len(BLOCKS)]
    faults = dict.fromkeys(chance.sample(range(4), chance.choice((1, 2))), fault)
    cells, attempts = chance.choice((1, 2)), chance.choice((1, 1, 2))
    overrides = ["+blocked_cell_timeout_seconds=2", f"++num_cells={cells}", f"--max-attempts={attempts}"]
    job = FaultyEvaluation(folder, faults, overrides=overrides)
    status, _ = job.run()
    if status != 1:
        raise BrokenPromise(f"the run with {fault} ended with status {status}:\n{job.log_tail()}")
    job.check_results()
    log = (folder / "log.txt").read_text()
    if "its event loop did not run" not in log or f"{FAULTY}: " not in log:
        raise BrokenPromise(f"the log does not name the server that blocked its cell:\n{job.log_tail()}")
    return f"{len(faults)} rows with {fault}, {cells} cells"
