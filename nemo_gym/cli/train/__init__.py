"""`gym train`: train a model with rollouts, one module per command."""
