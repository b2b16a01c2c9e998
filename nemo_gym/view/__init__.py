"""The rollout viewer: a database of a run's files, a page in the browser, the same facts on the terminal.

It reads the files of a run and never changes them; see docs/view.md.

- `facts`, `database`, `query`, `summary`: the facts of rollouts, filtering, and the summary of a run
- `conversation`: a record as events to read
- `server`, `export`, `text`: the page, a folder to share, the terminal
"""
