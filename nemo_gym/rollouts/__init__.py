"""From dataset rows to stored outcomes: plan, collect, store."""
