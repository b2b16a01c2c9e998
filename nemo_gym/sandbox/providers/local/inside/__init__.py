"""What runs inside a box: this folder is all of ours that is mounted there.

Only the standard library, and little of that: whatever is imported here is paid for by every cold start, so modules
that pull in half the library (typing, json, socket, signal, contextlib) are left out or imported where they are needed.
"""
