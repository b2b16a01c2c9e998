"""Scores from rollouts: pure functions on rows, without access to clock and files.

- `aggregate`: metrics over the rollouts of an agent and per task; `AggregateMetricsMixin` for servers
- `scores`, `intervals`: means with their confidence intervals, pass@k, attrition
- `latency`, `prometheus_text`: durations in buckets, with quantiles; the text that Prometheus reads
- `answer_totals`: tokens by kind, and truncated, refused and unextracted answers
- `prices`: the cost of tokens from a price table
- `pass_at_k`: pass@k, pass^k, majority@k in percent, for servers
- `column_statistics`: the numbers of rollouts as columns, and mean, max, min, median, std of each column
"""
