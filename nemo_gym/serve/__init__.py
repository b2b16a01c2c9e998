"""The server side: apps, sessions, and the one path from a call to its reply.

- `handle`: `handle(call) -> Reply` for every carrier, and the ASGI adapter for uvicorn
- `app`: the FastAPI app of our servers; `endpoints`: plain JSON endpoints; `requests`: what handlers receive
- `session`, `correlation`, `failures`: session cookies, rollout ids, error answers and deadlines, also as middleware
- `mcp`, `mcp_tools`: tools over the Model Context Protocol; `profiling`: CPU profiles of a server
- `head`: routes of the head server; `addresses`: addresses of the instances of a configuration
- `run`, `uvicorn_server`: serve an app in this process; `watch`: blocked event loops; `gc_tuning`: garbage collection
"""
