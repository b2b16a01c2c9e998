"""Look at rollouts: an index of the files, a page in the browser, the same facts on the terminal.

Reads what the store wrote and owns nothing; see docs/view.md.
"""
