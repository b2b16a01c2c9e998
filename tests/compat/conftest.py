"""The folders are other people's trees: `test_folders.py` runs their suites, each in a process of its own."""

collect_ignore = ["folders"]
