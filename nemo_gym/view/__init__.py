"""The rollout viewer: it shows the rollouts of a run in the browser or on the terminal.

It reads the files of a run and never changes them; see docs/view.md.

- `table_row`, `database`, `filters`, `summary`: the table of rollouts, filtering, and the summary of a run
- `conversation`: the messages, tool calls and results of a record as events
- `server`, `export`, `terminal`: the page in the browser, the page as a folder to share, the terminal
"""
