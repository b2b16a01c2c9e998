"""The rollout viewer: it shows the rollouts of a run in the browser or on the terminal.

It reads the files of a run and writes only annotations that the page sends; see docs/view.md.

- `table_row`, `index`, `filters`, `database`, `columns`: the table of rollouts, its index, filters and queries
- `run_facts`, `statistics`, `health`, `summary`, `live_state`: a run: what made it, its statistics, findings, progress
- `conversation`, `turns`, `verdict`, `failure_page`, `tool_list`, `token_sequence`, `rollout_page`: one rollout
- `comparison`: several runs, with the statistics of `nemo_gym.analysis`
- `api`, `server`, `export`, `terminal`: JSON, the page in the browser, the page as a folder to share, the terminal
"""
