"""The yardstick: what things cost, measured, against what we promise."""
