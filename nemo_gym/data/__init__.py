"""Rows before they are run: checked, measured, collated and published; prompts filled in, skills attached."""
