"""Pydantic models of requests, responses and records.

base            `WireModel`, `TaggedUnion`, free-form values
responses, items, hosted_items, unions, content_parts, tools, usage     the OpenAI Responses API
chat, chat_params                                               OpenAI Chat Completions: replies, requests
messages        the Anthropic Messages API
tokens          token ids and log-probabilities for training
tasks           run, seed and verify requests
metrics         aggregated metrics
observations    an agent's reports about an episode; trajectories
call_reply, stored_rollout      a call to a server and its reply; the key and stored record of a rollout
"""
