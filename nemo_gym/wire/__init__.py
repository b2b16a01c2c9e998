"""The types that travel: pydantic models of requests, responses and records.

base            `WireModel`, `TaggedUnion`, free-form values
responses, items, hosted_items, unions, parts, tools, usage     the OpenAI Responses API
chat, chat_params                                               OpenAI Chat Completions: replies, requests
messages        the Anthropic Messages API
tokens          token ids and log-probabilities for training
tasks           run, seed and verify requests
metrics         aggregated metrics
observations    what an agent reports about an episode; trajectories
"""
