"""Read components and datasets from disk, without running any of their code.

- `roots`: the folders that are searched, and finding a file in them
- `lookup`: from a name on the command line to a configuration file
- `components`, `benchmarks`: what `gym list` and `gym search` show
- `preparation`: run the scripts that write the rows of benchmarks
- `metric_hooks`: find out from a server's source whether it computes metrics
- `rows`, `row_problems`: parse and check dataset rows
- `files`: write files atomically
"""
