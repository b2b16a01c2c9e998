"""Start the servers of a configuration, keep them running and stop them.

A cell is a process that hosts many server instances on one event loop. The zygote is a preloaded parent process from
which cells and other server processes are forked.

- `run`: `Run`, the servers of one configuration; `background_run`: `BackgroundRun`, for synchronous callers
- `hosted_instances`: `find_instances`; `server_block_check`: check server blocks; `ports`: listening sockets
- `supervisor`, `spawners`, `prefork`, `zygote`: start, watch and restart processes
- `cell_group`: the cells of a run, calls to them and quarantine
- `server_process`, `cell`, `app_listener`: the code that runs inside a server process
- `requirements`, `venv`, `venv_build`: virtual environments of servers; `programs`: other programs they start
- `folder_tests`: run the tests of server folders
- `model_endpoints`: wait for model endpoints and limit requests to them
- `slurm`, `slurm_cluster`: scripts for `gym eval submit`
- `engines`: where servers are placed: on this machine, or on the nodes of a cluster

This module imports nothing, because `prefork` must load quickly.
"""
