"""Everything that a command shows on the terminal: data on stdout, the rest on stderr.

`output` writes data, notices, errors, tables and bars; `log` shows log records; `progress` counts the outcomes of a
collection and `live` draws them.
"""
