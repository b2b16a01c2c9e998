"""Recording of model calls under a rollout id.

- `middleware`: records the calls of a model server; `record`, `events`: one call and its stream
- `store`: capture files on disk; `settings`: what the configuration enables
"""
