"""The disturbances, one module each.

A scenario module has `run_seed(folder, seed)`, which runs one evaluation with the disturbance that the seed determines
in a new folder, raises `BrokenPromise` if a promise is broken, and returns a sentence about the run. `LONG_DIVISOR`
(default 1) makes a slow scenario run that many times less often in the long form, `SHORT_RUNS` (default 20) sets the
number of runs in CI.
"""
