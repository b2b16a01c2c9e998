"""Rows before they are run: prompts filled in, skills attached."""
