"""Start the servers of a configuration, keep them running and stop them.

- `run`: `Run`, the servers of one configuration; `background`: `BackgroundRun`, for synchronous callers
- `settings`: configuration keys of this package, as typed values
- `instances`: `find_instances`, `check_server_blocks`; `ports`: listening sockets
- `supervisor`, `spawn`, `prefork`, `zygote`: start, watch and restart processes
- `server_process`, `cell`, `http_server`, `shared_limits`: what runs inside a server process
- `link`, `waiting`: calls between the processes of a run
- `requirements`, `venv`, `venv_build`: virtual environments of servers; `dry_run`, `folder_tests`: what runs in them
- `endpoints`: wait for model endpoints; `registry`: find the runs of this machine; `logs`: output of processes
- `slurm`: scripts for `gym eval submit`

Nothing is imported here: `prefork` must load quickly.
"""
