"""Run real agent programs against our model servers, without a network, and write the table in docs/clients.md.

- `coding_task`: the workspace, the turns of the model that solve the task, and the check of the result
- `upstream`: an endpoint that answers with these turns in Chat Completions and Responses, for servers that forward
- `servers`: the model servers, each at a loopback port
- `catalog`: how each program is installed, configured and started
- `isolation`: a network with loopback only, and an end for every child
- `runner`: run the programs and judge what they did; `table`: the page docs/clients.md
- `agents_sdk`: a small agent with the package `openai-agents`
"""
