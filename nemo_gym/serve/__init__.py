"""The server side: apps, session cookies, error answers, and the path from a call to its reply.

A plain JSON endpoint is an async handler whose only inputs are a JSON body, the request and a response to set cookies
on. Such endpoints are called directly; all others through FastAPI.

- `call_handler`: `handle(call) -> Reply` for every carrier, and the ASGI adapter for uvicorn
- `app`: the FastAPI app of our servers; `endpoints`: plain JSON endpoints and their requests
- `validation_problems`: bounded problems of invalid requests and answers
- `session`: session cookies and values per session; `correlation`: rollout ids in paths and which calls have them
- `rollout_budgets`: model calls of external programs, counted and limited; `run_budget`: the agent's side of it
- `model_methods`: the methods that answer for a model server; `model_routes`: its other endpoints, and those of Gemini
- `event_stream`: the answers of models as streams; `model_errors`: exceptions of model servers as errors of their API
- `failures`: error answers and deadlines (middleware); `cancellation`: cancel rollouts from outside
- `tools`, `tool_schema`: methods as tools; `openings`, `session_closing`: the beginning and the end of a session
- `agent_sessions`: sessions of an agent whose id the caller chooses
- `chat_engines`: helpers of model servers in front of a chat engine; `answer_room`: limits that do not fit its context
- `blocking`: blocking code on a bounded number of threads, with a deadline
- `mcp`, `mcp_tools`: tools over the Model Context Protocol; `profiling`: CPU profiles of a server
- `head`: routes of the head server; `run_counts`: the `/run` requests of each process
- `addresses`: addresses and blocks of the instances of a configuration
- `response_cache`: answers of models on disk; `repeated_failures`: a log line for each cause instead of each failure
- `run_registry`: find the runs of this user on this machine, with their tokens
- `webserver`, `uvicorn_server`: serve an app in this process; `http_protocol`: limits on HTTP connections
- `access`: which HTTP requests are answered; `peer_user`: the user at the other end of a connection
- `blocked_loop`: detection of blocked event loops; `gc_tuning`: garbage collection thresholds
- `server_loop`: the event loop of a server process, which code of a server cannot end
- `process_status`: heartbeat and running handler of a process, readable from outside; `thread_handlers`: the same for
  threads
"""
