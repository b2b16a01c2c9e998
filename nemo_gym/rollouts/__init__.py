"""Collect rollouts: plan jobs from rows, send them to agents, store their outcomes, score them.

- `plan`, `row_selection`, `routing`: from dataset rows to jobs; the agents of a row
- `collect`: send jobs; retry policy; rollouts in flight; `stop_condition`: early stop; `limit_options`: its options
- `crash_recovery`: rollouts that are sent again because another rollout ended their server
- `rollout_sender`: send one job to its agent, with limits, captures and tokens
- `example_dispatch`: the rows of a trainer, sent and planned without files
- `node_choice`: the node of a rollout, for clients of servers on several nodes
- `leases`, `dispatch`, `node_collector`, `node_messages`: the same on many nodes: leases of the driver, jobs of a node
- `outcome`, `attribution`, `scoring_rules`: how a rollout ended, which server failed, how an agent is scored
- `refusals`: model endpoints that refuse one row, or the whole run
- `store`, `output_guard`, `lock`, `run_files`, `run_identity`, `resume`: the files of a run, resume matching
- `run_folders`: one folder per run, with labels; `annotations`: what people note about rollouts
- `aggregate`: metrics per agent, with those that servers compute
- `merged_outputs`: the outputs of several runs, read as one
- `capture_join`, `reported_trajectory`: captured model calls and trajectories, added to results
- `token_delivery`: captured tokens, put into results
"""
