"""The disturbances, one module each.

A scenario module has `run_seed(folder, seed)`, which runs one evaluation with the disturbance that the seed determines
in a new folder, raises `BrokenPromise` if a promise is broken, and returns a sentence about the run. The short
form, which CI runs, takes the first 20 seeds, or as many as the `SHORT_RUNS` of the scenario; the long form 1,000.
"""
