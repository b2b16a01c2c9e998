"""External staging: the inference worker keeps the tokens, the model server a ledger, the framework verifies both.

- `records`: wire models and protocols
- `digests`: hashes of calls, chains and extras
- `worker`: the capture at the worker and its adapters
- `receipts`: verification and the row to train on
- `terminal`: the last call of a rollout without a witness
- `routed_experts`: the text form of expert choices
- `client`: reads the ledger of a model server
"""
