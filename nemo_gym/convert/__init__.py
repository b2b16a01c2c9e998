"""Conversion between API dialects: Responses, Chat Completions and Anthropic Messages, as plain dictionaries.

No clock and no random numbers: ids are passed in. What a dialect cannot express raises `ConversionError`.

    responses_chat          Responses ↔ Chat: requests and replies
    chat_conversation, chat_options                 its parts: conversation, options
    responses_messages      Responses ↔ Messages: requests and replies
    message_blocks, message_options                 its parts: content blocks, options
    streams, sse            finished replies ↔ stream events ↔ bytes
    streaming_request       Responses requests of coding agents
    thinking, usage         `<think>` tags, token counts
    shapes, wire_objects    checked access to foreign JSON, wire objects ↔ dictionaries
"""
