"""Conversion between API dialects: Responses, Chat Completions and Anthropic Messages, as plain dictionaries.

The functions use no clock and no random numbers: ids are passed in. An element that the target dialect cannot express
raises `ConversionError`.

    responses_chat          Responses ↔ Chat: requests and replies
    chat_conversation, chat_options                 its parts: conversation, options
    responses_messages      Responses ↔ Messages: requests and replies
    message_blocks, message_options                 its parts: content blocks, options
    streams, sse            finished replies ↔ stream events ↔ bytes
    streaming_request       streaming Responses requests of coding agents
    reasoning_tags, usage   `<think>` tags, token counts
    json_access, wire_objects                       checked access to JSON, wire objects ↔ dictionaries
"""
