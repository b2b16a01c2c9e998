"""All output of commands: results on stdout, everything else on stderr.

`output` writes results, notices, errors, tables and bars; `log` shows log records; `progress` counts the outcomes of a
collection and `live` draws the progress.
"""
