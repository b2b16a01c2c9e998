"""Scores from rollouts: pure arithmetic on plain rows, without clock and files.

- `aggregate`, `profile`: metrics over the rollouts of an agent and per task; `AggregateMetricsMixin` for servers
- `scores`, `intervals`: means with their confidence intervals, pass@k, attrition
- `pass_at_k`: pass@k, pass^k, majority@k in percent, for servers
- `columns`, `records`: the numbers of rollouts, kept small
"""
