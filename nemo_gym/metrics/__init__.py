"""Scores out of rollouts: pure arithmetic on plain rows, no clock and no file."""
