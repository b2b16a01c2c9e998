"""Garbage collector thresholds of a command's process."""

import gc

DEFAULT_THRESHOLD = gc.get_threshold()
"""Read when the command starts, before it sets another one; servers get this one back."""

IMPORT_THRESHOLD = (50_000, 20, 20)
"""Imports make half a million objects and no garbage; with the default they take a seventh longer."""
