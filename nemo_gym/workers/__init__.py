"""Functions that run in worker processes with hard limits on time and memory.

- `pool`: `WorkerPool`, `WorkerResult`, `WorkerFailure`
- `host`: the host, a process that forks workers, and the code of a worker
- `math_verifier`: `MathVerifier`, which compares mathematical answers
- `symbolic_math`: the comparison of expressions that `MathVerifier` runs in workers
"""
