"""Read stored runs and decide: functions over stored results, without clock or process; only run health has files.

- `paired_tests`: the paired difference of two runs by task, with its interval and p value; Holm's correction
- `comparability`: in words, what differs in how two runs were made
- `compare`: two or more runs: verdict, flips, subsets, cost and speed
- `rollout_health`: which rollouts of a run are hollow or broken
- `health_checks`, `rollout_evidence`: its checks; what a stored rollout proves
"""
