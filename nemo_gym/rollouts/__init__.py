"""Collect rollouts: plan jobs from rows, send them to agents, store their outcomes, score them.

- `plan`: from dataset rows to jobs
- `collect`: send jobs; retry policy; rollouts in flight; early stop
- `outcome`, `attribution`, `scoring_rules`: how a rollout ended, which server failed, how an agent is scored
- `refusals`: model endpoints that refuse one row, or the whole run
- `store`, `output_guard`, `lock`, `run_files`, `run_identity`, `resume`: the files of a run, resume matching
- `aggregate`: metrics per agent, with those that servers compute
- `merged_outputs`: the outputs of several runs, read as one
- `capture_join`: captured model calls and trajectories, added to results
- `token_delivery`: captured tokens, put into results
"""
