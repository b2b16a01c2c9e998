"""Conversion between API dialects: Responses, Chat Completions, Anthropic Messages and Gemini, as plain dictionaries.

The functions use no clock and no random numbers: ids are passed in. An element that the target dialect cannot express
raises `ConversionError`.

    responses_chat, chat_conversation               Responses ↔ Chat: requests, replies and options; conversations
    responses_anthropic, anthropic_blocks           Responses ↔ Messages: requests, replies and options; content blocks
    gemini_request, gemini_answer                   Gemini → Responses; Responses → Gemini, whole and streamed
    flattened_tools, anthropic_tools, chat_custom_tools  tools that other dialects lack ↔ functions
    response_events, chat_stream, message_stream    finished and live replies ↔ stream events
    stream_encoders, sse    replies as the bytes of a stream, by dialect; stream events ↔ bytes
    thought_splitter        thoughts in a text that arrives in pieces
    answer_repair           replies of endpoints that leave out what no client needs
    chunk_repair            chunks of endpoints with odd calls and contents
    error_bodies            errors in the form of each dialect
    usage                   token counts
    json_access             checked access to JSON; pydantic objects ↔ dictionaries
"""
