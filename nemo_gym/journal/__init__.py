"""JSONL result files: reading, repair, lenient JSON, appending and indexing.

- `lines`: scan rows with their byte offsets, read one row again, repair a torn last line, write and append lines
- `index`: the key and byte offset of every line, cached in a side file
"""
