"""Scores from rollouts: pure functions on rows, without access to clock and files.

- `aggregate`, `profile`: metrics over the rollouts of an agent and per task; `AggregateMetricsMixin` for servers
- `scores`, `intervals`: means with their confidence intervals, pass@k, attrition
- `pass_at_k`: pass@k, pass^k, majority@k in percent, for servers
- `number_columns`, `rollout_numbers`: the numbers of rollouts in a compact form, and their statistics
"""
