"""The code that runs inside a box: `init_process`, `child_actions` (its children), `confine` (their restrictions),
`forwarder` (a command that forwards ports to sockets).

This folder is the only part of this package that is mounted in a box. It uses little of the standard library, because
every import slows down the start of every box: large modules (typing, json, socket, signal, contextlib) are avoided or
imported where they are needed.
"""
