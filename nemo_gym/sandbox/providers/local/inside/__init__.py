"""The code that runs inside a box: `supervisor` (process 1), `programs` (its children), `confine`.

This folder is the only part of this package that is mounted there. It uses little of the standard library, because
every import costs every cold start: large modules (typing, json, socket, signal, contextlib) are avoided or imported
where they are needed.
"""
