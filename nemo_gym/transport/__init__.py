"""The client side: send a call to a server and return its reply, within its deadline.

- `in_process`, `cell_link`, `http`: the three carriers; `model_connections` is the HTTP client for model endpoints
- `deadlines`: deadlines, alarms and the allowance of a rollout
- `retries`: retry policy, circuit breaker, endpoint health
- `model_client`: the OpenAI client of model servers and its adaptive limit; `shared_semaphore`: limits across processes
- `call_log`: calls a rollout waits for, and the time it spent in each phase
- `responses`: reading responses; `asgi`: ASGI to `Call` and `Reply` and back; `event_loop`: coalesced writes
- `http_sessions`: aiohttp sessions and their settings; `blocking`: a GET without an event loop
"""
