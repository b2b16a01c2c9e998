"""Collect rollouts: plan jobs from rows, send them to agents, store their outcomes, score them.

- `plan`, `task_numbers`: from dataset rows to jobs
- `collect`, `retries`, `completion_order`: send jobs, rollouts in flight, early stop; retry policy; send plain rows
- `outcome`, `attribution`: how a rollout ended, and which server a failure is attributed to
- `store`, `lock`, `run_files`, `identity`, `resume`: the files of a run, resume matching
- `aggregate`, `shards`, `rescoring`, `capture_join`: scores, merging, profiles and reverification, trajectories
- `config`, `scoring_rules`: the configuration keys of a collection; the scoring rules that servers declare
"""
