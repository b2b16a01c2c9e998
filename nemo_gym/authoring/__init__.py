"""Tools for environment authors: scaffold, verifier cases, audit, manifest, publication checks.

scaffold            write a new resources server, environment or benchmark (`gym env init`)
gymnasium           base class of environments with a `reset` and `step` protocol
episode_agent       base class of agents that play episodes with a model and a resources server
tool_agent          base class of agents that call tools: the loop of `simple_agent`; `compaction` of a full context
external_mcp        tools of external MCP servers for an agent; `mcp_channels` and `mcp_supervisor` connect and end them
endpoint_model      base class of model servers that forward to an OpenAI-compatible endpoint
chat_model          base class of model servers whose model speaks Chat Completions
provider_state      what a provider wants to see again with the output of a tool
verifier_cases      `VERIFIER_FIXTURE`: cases with the rewards a verifier must give (`gym env test NAME`)
audit               run a verifier against right, wrong and cheating replies and malformed rows (`gym env audit`)
audit_server, audit_result          the server under audit; the result of an audit
model_replies, cheats               build the replies that an audit sends
verifier_proof      `VerifierProof`: the checks of the audit as tests of a server folder
verifier_process    run the cases or the audit of a verifier in the interpreter of its server
manifest            `manifest.yaml`; `manifest_checks` compares it with the files around it
"""
