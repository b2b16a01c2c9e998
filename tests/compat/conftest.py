"""The folders are trees of other authors: `test_folders.py` runs their suites, each in a separate process."""

collect_ignore = ["folders", "newer_tree"]
