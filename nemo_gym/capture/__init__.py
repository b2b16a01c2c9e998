"""Capture: recording of model calls under a rollout id.

- `middleware`: records the calls of a model server
- `model_answer`: the answer of the model to the current call, before it is converted
- `record`: the record of one model call; `call_text`: its question and answer
- `store`: capture files on disk, and the capture settings of the configuration
"""
