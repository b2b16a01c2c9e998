"""Read components and datasets from disk, without running any of their code.

- `roots`: the folders that are searched, and finding a file in them
- `lookup`: from a name on the command line to a configuration file
- `components`, `benchmarks`: the components for `gym list` and `gym search`
- `preparation`: run the scripts that write the rows of benchmarks
- `metric_hooks`: detect from a server's source whether it computes metrics
- `rows`, `row_problems`: parse and check dataset rows
- `config_tree`: load one configuration file as a tree
- `benchmark_script`: the process that runs the script of a benchmark
- `atomic_files`: write files atomically
"""
