"""Programs for people who work on NeMo Gym."""
