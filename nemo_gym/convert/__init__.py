"""Conversion between API dialects: Responses, Chat Completions and Anthropic Messages, as plain dictionaries.

The functions use no clock and no random numbers: ids are passed in. An element that the target dialect cannot express
raises `ConversionError`.

    responses_chat, chat_conversation               Responses ↔ Chat: requests, replies and options; conversations
    responses_anthropic, anthropic_blocks           Responses ↔ Messages: requests, replies and options; content blocks
    streams, sse            finished replies ↔ stream events ↔ bytes
    usage                   token counts
    json_access             checked access to JSON; pydantic objects ↔ dictionaries
"""
