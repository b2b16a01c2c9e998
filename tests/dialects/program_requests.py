"""Second requests of agent programs, shortened: what they really send after one tool call, with all fields of theirs.

Written from what the versions in docs/clients.md send. `path` is relative to the root of a model server.
"""

from typing import Any

Json = dict[str, Any]

TASK = "The function add in calc.py is wrong. Read the file and fix it."
SCHEMA: Json = {
    "type": "object",
    "properties": {"command": {"type": "string", "description": "Bash command to execute"}},
    "required": ["command"],
}
FILE = "def add(a, b):\n    return a - b\n"
CHAT_CALL: Json = {
    "id": "call_0",
    "type": "function",
    "function": {"name": "bash", "arguments": '{"command": "cat calc.py"}'},
}
CHAT_TOOL: Json = {"type": "function", "function": {"name": "bash", "description": "Run it", "parameters": SCHEMA}}

CODEX: Json = {
    "model": "m",
    "stream": True,
    "input": [
        {
            "type": "message",
            "id": "msg_a",
            "role": "developer",
            "content": [{"type": "input_text", "text": "You code."}],
        },
        {"type": "message", "id": "msg_b", "role": "user", "content": [{"type": "input_text", "text": TASK}]},
        {
            "type": "reasoning",
            "id": "rs_0",
            "summary": [{"type": "summary_text", "text": "I read it first."}],
            "content": None,
            "encrypted_content": None,
        },
        {
            "type": "function_call",
            "status": "completed",
            "id": "fc_0",
            "name": "spawn_agent",
            "namespace": "multi_agent_v1",
            "arguments": "{}",
            "call_id": "call_0",
        },
        {"type": "function_call_output", "id": "fco_0", "call_id": "call_0", "output": FILE},
    ],
    "tools": [
        {"type": "function", "name": "exec_command", "description": "Run it.", "strict": False, "parameters": SCHEMA},
        {
            "type": "namespace",
            "name": "multi_agent_v1",
            "description": "Sub-agents.",
            "tools": [{"type": "function", "name": "spawn_agent", "strict": False, "parameters": SCHEMA}],
        },
        {"type": "custom", "name": "apply_patch", "description": "Edit", "format": {"type": "text"}},
        {"type": "web_search", "external_web_access": True},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a1ef38",
    "client_metadata": {"turn_id": "01a1ef38", "x-codex-window-id": "01a1ef38:0"},
}
PI_RESPONSES: Json = {
    "model": "m",
    "input": [
        {"role": "system", "content": "You code."},
        {"role": "user", "content": [{"type": "input_text", "text": TASK}]},
        {"type": "function_call", "id": "fc_0", "call_id": "call_0", "name": "bash", "arguments": '{"command": "cat"}'},
        {"type": "function_call_output", "call_id": "call_0", "output": FILE},
    ],
    "stream": True,
    "prompt_cache_key": "01a1ef38",
    "store": False,
    "max_output_tokens": 4096,
    "tools": [{"type": "function", "name": "bash", "description": "Run it", "parameters": SCHEMA, "strict": False}],
}
AGENTS_RESPONSES: Json = {
    "model": "m",
    "include": [],
    "input": [
        {"content": TASK, "role": "user"},
        {
            "id": "rs_0",
            "summary": [{"text": "I read it first.", "type": "summary_text"}],
            "type": "reasoning",
            "content": None,
            "encrypted_content": None,
        },
        {
            "id": "msg_0",
            "content": [{"annotations": [], "text": "I look.", "type": "output_text", "logprobs": None}],
            "role": "assistant",
            "status": "completed",
            "type": "message",
        },
        {
            "arguments": "{}",
            "call_id": "call_0",
            "name": "bash",
            "type": "function_call",
            "id": "fc_0",
            "status": "completed",
        },
        {"call_id": "call_0", "output": FILE, "type": "function_call_output"},
    ],
    "tools": [{"name": "bash", "parameters": SCHEMA, "strict": True, "type": "function", "description": "Run it."}],
}
PI_CHAT: Json = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "You code."},
        {"role": "user", "content": [{"type": "text", "text": TASK}]},
        {"role": "assistant", "content": "I look.", "tool_calls": [CHAT_CALL]},
        {"role": "tool", "content": FILE, "tool_call_id": "call_0"},
    ],
    "stream": True,
    "stream_options": {"include_usage": True},
    "store": False,
    "max_completion_tokens": 4096,
    "tools": [CHAT_TOOL],
}
MINI_CHAT: Json = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": TASK},
        {
            "content": "I look.",
            "role": "assistant",
            "tool_calls": [CHAT_CALL],
            "reasoning_content": "I read it first.",
            "provider_specific_fields": {"refusal": None},
        },
        {"role": "tool", "content": FILE, "tool_call_id": "call_0"},
    ],
    "tools": [CHAT_TOOL],
}
OPENCODE_CHAT: Json = {
    "model": "m",
    "max_tokens": 4096,
    "messages": PI_CHAT["messages"],
    "tools": [CHAT_TOOL],
    "tool_choice": "auto",
    "stream": True,
    "stream_options": {"include_usage": True},
}
CLAUDE: Json = {
    "model": "claude-opus-4-8",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "<system-reminder>"}, {"type": "text", "text": TASK}]},
        {"role": "system", "content": "Available agent types for the Agent tool"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I read it first.", "signature": ""},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "call_0", "name": "Bash", "input": {"command": "cat calc.py"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "call_0",
                    "content": FILE,
                    "is_error": False,
                    "cache_control": {"type": "ephemeral"},
                }
            ],
        },
    ],
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2"},
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
    ],
    "tools": [
        {"name": "Bash", "description": "Run it", "input_schema": {"$schema": "https://json-schema.org/x", **SCHEMA}},
        {"name": "read", "description": "Read it", "eager_input_streaming": True, "input_schema": SCHEMA},
    ],
    "metadata": {"user_id": "{}"},
    "max_tokens": 64000,
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "stream": True,
}
GEMINI: Json = {
    "contents": [
        {"role": "user", "parts": [{"text": "This is the setup."}]},
        {"role": "user", "parts": [{"text": TASK}]},
        {
            "role": "model",
            "parts": [
                {"text": "I read it first.", "thought": True},
                {"text": "I look."},
                {"functionCall": {"name": "run_shell_command", "args": {"command": "cat calc.py"}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "x-1", "name": "run_shell_command", "response": {"output": FILE}}},
            ],
        },
    ],
    "systemInstruction": {"role": "user", "parts": [{"text": "You code."}]},
    "tools": [
        {
            "functionDeclarations": [
                {"name": "run_shell_command", "description": "Run it", "parametersJsonSchema": SCHEMA},
                {
                    "name": "read_file",
                    "description": "Read it",
                    "parameters": {
                        "type": "OBJECT",
                        "properties": {"path": {"type": "STRING", "nullable": True, "minLength": "1"}},
                    },
                },
            ]
        },
        {"googleSearch": {}},
    ],
    "generationConfig": {
        "temperature": 0,
        "topP": 0.95,
        "topK": 64,
        "thinkingConfig": {"includeThoughts": True, "thinkingBudget": 8192},
    },
}

PROGRAMS: dict[str, tuple[str, Json]] = {
    "codex": ("/v1/responses", CODEX),
    "pi responses": ("/v1/responses", PI_RESPONSES),
    "openai-agents responses": ("/v1/responses", AGENTS_RESPONSES),
    "openai-agents responses streamed": ("/v1/responses", {**AGENTS_RESPONSES, "stream": True}),
    "pi chat": ("/v1/chat/completions", PI_CHAT),
    "mini-swe-agent": ("/v1/chat/completions", MINI_CHAT),
    "opencode chat": ("/v1/chat/completions", OPENCODE_CHAT),
    "claude-code": ("/v1/messages?beta=true", CLAUDE),
    "pi messages": (
        "/v1/messages",
        {key: CLAUDE[key] for key in ("model", "messages", "max_tokens", "tools", "stream")},
    ),
    "gemini-cli": ("/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse", GEMINI),
    "gemini-cli whole": ("/v1beta/models/gemini-2.5-flash:generateContent", GEMINI),
}
