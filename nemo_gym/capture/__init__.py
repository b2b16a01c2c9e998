"""Capture: recording of model calls under a rollout id.

- `middleware`: records the calls of a model server
- `record`: the record of one model call; `events`: parsing of a streamed answer
- `store`: capture files on disk; `settings`: capture settings in the configuration
"""
