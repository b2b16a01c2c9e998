"""Pydantic models of requests, responses and records.

base            `WireModel`, `TaggedUnion`, free-form values, token ids and log-probabilities for training
responses, token_usage          the OpenAI Responses API: items, request, response; token counts
input_content, hosted_tool_calls, responses_options     its parts: content, items of hosted tools, options
chat_completions, anthropic_messages                    the other two dialects
engine_options                  options of inference engines that are in no dialect
run_seed_verify                 bodies of the endpoints `/run`, `/seed_session` and `/verify`
episode                         openings and steps: what an environment gives an episode at run time
episode_task                    episodes and tasks with an identity, and how an episode ends
session_access, session_requests                        what a session lends to an agent; sessions with ids
observations                    an agent's reports about an episode; trajectories
atif                            trajectories in the Agent Trajectory Interchange Format
server_refs                     references to server instances
call_reply, stored_rollout      a call to a server and its reply; the key and stored record of a rollout
"""
