"""Model-call capture: every request a rollout made to a model, and the answer, kept on disk."""
