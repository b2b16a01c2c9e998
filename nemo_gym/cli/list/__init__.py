"""`gym list`: `components` lists benchmarks, environments, agents, models and resources servers."""
