"""Read components and datasets from disk, without running any of their code.

- `agent_pairing`: pair an environment with another agent
- `component_names`: from a name on the command line to a configuration file
- `components`: the components for `gym list` and `gym search`
- `source_environments`: environments of other packages as components
- `benchmarks`: the declared benchmarks, and running the scripts that write their rows
- `prepare_subprocess`: the process that runs the script of a benchmark
- `metric_hooks`: detect from a server's source whether it computes metrics
- `rows`, `row_problems`: parse and check dataset rows
- `atomic_files`: write files atomically
"""
