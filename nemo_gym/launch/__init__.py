"""Start the servers of a configuration, keep them running and stop them.

A cell is a process that hosts many server instances on one event loop. The zygote is a preloaded parent process from
which cells and other server processes are forked.

- `run`: `Run`, the servers of one configuration; `run_in_thread`: `BackgroundRun`, for synchronous callers
- `settings`: configuration keys of this package, as typed values
- `hosting`: `find_instances`, `check_server_blocks`; `check_cache`: blocks that passed; `ports`: listening sockets
- `supervisor`, `start_process`, `prefork`, `zygote`: start, watch and restart processes
- `server_process`, `cell`, `http_server`, `shared_limits`: the code that runs inside a server process
- `requirements`, `venv`, `venv_build`: virtual environments of servers
- `dry_run`: construct servers without serving; `folder_tests`: run the tests of server folders
- `endpoint_readiness`: wait for model endpoints; `run_registry`: find the runs of this machine
- `logs`: output of processes; `slurm`: scripts for `gym eval submit`

This module imports nothing, because `prefork` must load quickly.
"""
