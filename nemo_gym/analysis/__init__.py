"""Read stored runs and decide: pure functions over rewards by task and `metrics`, without files, clock or process.

- `paired_tests`: the paired difference of two runs by task, with its interval and p value; Holm's correction
- `comparability`: in words, what differs in how two runs were made
- `compare`: two or more runs: verdict, flips, subsets, cost and speed
"""
