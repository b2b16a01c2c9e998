"""Functions that run in worker processes with hard limits on time and memory.

- `pool`: `WorkerPool`, `WorkerResult`, `WorkerFailure`
- `host`: the program that forks workers, and the worker itself
- `math`: `MathVerifier`, which compares mathematical answers
- `symbolic`: the comparison of expressions that `MathVerifier` runs in workers
"""
