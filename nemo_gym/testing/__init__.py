"""Checks that the tests of server folders call.

- `session_conformance`: the rules of sessions of resources servers
"""
