"""How often Python looks for garbage in the process of a command, and how often it does by itself."""

import gc

USUAL = gc.get_threshold()
"""Read when the command begins, before it sets its own."""

RARE = (50_000, 20, 20)
"""Imports make half a million objects and no garbage; looking for it costs a seventh more."""
