"""Collect rollouts: plan jobs from rows, send them to agents, store their outcomes, score them.

- `plan`, `task_numbers`: from dataset rows to jobs
- `collect`, `retries`, `completion_order`: send jobs; retry policy; rollouts in flight; early stop
- `outcome`, `attribution`, `scoring_rules`: how a rollout ended, which server failed, how an agent is scored
- `store`, `lock`, `run_files`, `identity`, `resume`: the files of a run, resume matching
- `aggregate`, `shards`, `rescoring`, `capture_join`: scores, merging, profiles and reverification, trajectories
- `config`: the configuration keys of a collection
"""
