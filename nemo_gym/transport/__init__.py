"""The client side: send a call to a server and return its reply, within its deadline.

A carrier moves a call to its server and the reply back. There are three:

- `in_process`: function call to a server of the same process
- `cell_link`: Unix socket to a cell (a process that hosts many server instances)
- `http`: HTTP with retries; `http_sessions` has its aiohttp sessions, `model_connections` a faster client for models

Other modules:

- `deadlines`: rollout deadline, call timeouts, and the allowance: the limits of a rollout (time, turns, tokens)
- `retries`: retry policy, circuit breaker, endpoint health
- `model_client`: the OpenAI client of model servers; `adaptive_limit`: its concurrency limit
- `event_reader`, `model_streams`: the answers of endpoints that stream
- `shared_semaphore`: concurrency limits across processes
- `call_timing`: pending calls of each rollout, and the time it spent in each phase
- `reply_log`: the model replies of a rollout, for cancelled rollouts
- `client_response`: reading responses; `response_errors`: errors that name the server
- `rejection_notice`: report endpoints that keep rejecting calls; `endpoint_waits`: the reason why a call waits
- `error_causes`: the cause in an error text that several servers wrapped
- `asgi`: ASGI to `Call` and `Reply` and back
- `large_bodies`: limits on the size of bodies, memory for large answers, decompression
- `event_loop`: one object per event loop, waiting for slots, coalesced writes
- `blocking_get`: a GET request without an event loop
- `run_token`: the secret that the processes of a run send to each other
"""
