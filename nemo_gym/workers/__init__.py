"""Functions that run in worker processes with hard limits on time and memory.

- `pool`: `WorkerPool`, `WorkerResult`, `WorkerFailure`
- `sessions`: `SessionWorkers`, one worker process for each session
- `process`: the process that forks workers, and the connection to one worker
- `host`: the host, a process that forks workers, and the code of a worker
- `math_verifier`: `MathVerifier`, which compares mathematical answers
- `symbolic_math`: the comparison of expressions that `MathVerifier` runs in workers
"""
