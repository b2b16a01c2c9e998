"""Convert requests: Gemini's `generateContent` → Responses API.

A function call of a conversation may lack an id in Gemini; then calls and results are joined by their order and name.
"""

import base64
import binascii
import re
from typing import Any

from nemo_gym.convert.anthropic_blocks import UNPARSED_ARGUMENTS, output_message
from nemo_gym.convert.json_access import (
    RESPONSES,
    Json,
    NewId,
    dict_at,
    dump_json,
    expect_dict,
    expect_list,
    expect_text,
    inexpressible,
    iter_dicts,
    optional_dict_at,
    optional_list_at,
    optional_text_at,
    text_at,
)
from nemo_gym.errors import ConversionError

GEMINI = "the Gemini API"

_OPTIONS = {
    "temperature": "temperature",
    "topP": "top_p",
    "maxOutputTokens": "max_output_tokens",
    "topK": "top_k",
    "stopSequences": "stop",
    "seed": "seed",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
}
"""The last five are options of engines, which servers whose endpoint lacks them drop."""
_CONVERTED_OPTIONS = frozenset(
    {*_OPTIONS, "candidateCount", "responseMimeType", "responseSchema", "responseJsonSchema", "thinkingConfig"}
)
_CONVERTED_FIELDS = frozenset({"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "model"})
_SNAKE = re.compile(r"(?<=[a-z0-9])_([a-z])")
_USER_DATA = frozenset({"args", "response", "parametersJsonSchema", "responseJsonSchema", "enum", "default", "labels"})
_USER_NAMES = frozenset({"properties", "$defs", "defs"})
_MODES = {"AUTO": "auto", "VALIDATED": "auto", "MODE_UNSPECIFIED": "auto", "ANY": "required", "NONE": "none"}
_SCHEMA_COUNTS = ("minItems", "maxItems", "minProperties", "maxProperties", "minLength", "maxLength")
_UPLOADED_FILES = "https://generativelanguage.googleapis.com/"
"""Where files are that a client has uploaded to Google; no other endpoint can read them."""
_AUDIO_FORMATS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mp3": "mp3", "audio/mpeg": "mp3"}
"""The formats of audio that the Responses API has."""
_GEMINI_ONLY_SCHEMA = frozenset({"propertyOrdering", "nullable", "example"})


def responses_request_from_gemini(body: Json, *, model: str, new_id: NewId) -> Json:
    """Convert a request to a Responses request; the `options_lost_from_gemini` are dropped."""
    body = expect_dict(body, "request")
    if body.get("cachedContent"):
        raise inexpressible("cachedContent", RESPONSES, "cachedContent", fix="send the whole conversation")
    params = {"model": model, **_options(optional_dict_at(body, "generationConfig", "request"))}
    if body.get("systemInstruction") is not None:
        params["instructions"] = _joined_text(body["systemInstruction"], "systemInstruction")
    tools = _function_tools(body)
    config = optional_dict_at(optional_dict_at(body, "toolConfig", "request"), "functionCallingConfig", "toolConfig")
    if tools:
        params |= _tool_choice(tools, config)
    conversation = _Conversation(new_id)
    for content, path in iter_dicts(body.get("contents"), "contents"):
        conversation.add(content, path)
    return {"input": conversation.items, **params}


def accepted_gemini_request(body: Json, *, model: str, new_id: NewId) -> tuple[Json, list[str]]:
    """Convert a request to a Responses request; return it and the fields that are dropped."""
    body = camel_case(expect_dict(body, "request"))
    return responses_request_from_gemini(body, model=model, new_id=new_id), options_lost_from_gemini(body)


def options_lost_from_gemini(body: Json) -> list[str]:
    """Return the fields of a request that are dropped, because Responses has no counterpart."""
    lost = [key for key, value in body.items() if key not in _CONVERTED_FIELDS and value not in (None, [], {})]
    config = body.get("generationConfig")
    if isinstance(config, dict):
        lost += [f"generationConfig.{key}" for key in config if key not in _CONVERTED_OPTIONS]
        thinking = config.get("thinkingConfig")
        if isinstance(thinking, dict) and thinking.get("thinkingBudget") not in (None, -1):
            lost.append("generationConfig.thinkingConfig.thinkingBudget")
    for tool in body.get("tools") or ():
        if isinstance(tool, dict):
            lost += [f"tools.{key}" for key in tool if key != "functionDeclarations"]
    return lost


def wants_thoughts(body: Json) -> bool:
    """Return whether the answer is to contain the thoughts of the model (`thinkingConfig.includeThoughts`)."""
    config = camel_case(body).get("generationConfig")
    thinking = config.get("thinkingConfig") if isinstance(config, dict) else None
    return isinstance(thinking, dict) and thinking.get("includeThoughts") is True


def camel_case(value: Any) -> Any:
    """Return a request with field names in camel case; the API accepts both, and some clients mix them.

    Names that the user chose (arguments, results, properties of a schema) stay.
    """
    if isinstance(value, list):
        return [camel_case(each) for each in value]
    if not isinstance(value, dict):
        return value
    converted: Json = {}
    for key, inner in value.items():
        name = _SNAKE.sub(lambda match: match[1].upper(), key) if isinstance(key, str) else key
        if name in _USER_DATA:
            converted[name] = inner
        elif name in _USER_NAMES and isinstance(inner, dict):
            converted[name] = {user_name: camel_case(each) for user_name, each in inner.items()}
        else:
            converted[name] = camel_case(inner)
    return converted


class _Conversation:
    """The items of a conversation, and the calls in it that have no result yet."""

    def __init__(self, new_id: NewId) -> None:
        self.items: list[Json] = []
        self._new_id = new_id
        self._unanswered: list[tuple[str, str]] = []  # id and name of each call

    def add(self, content: Json, path: str) -> None:
        """Add one content: a list of parts of the user or of the model."""
        role = content.get("role") or "user"
        if role not in ("user", "model", "function"):
            raise inexpressible(role, f"{RESPONSES} as the role of a content", path)
        for part, location in iter_dicts(content.get("parts"), f"{path}.parts"):
            if role == "model":
                self._add_of_model(part, location)
            else:
                self._add_of_user(part, location)

    def _add_of_model(self, part: Json, path: str) -> None:
        if part.get("functionCall") is not None:
            call = dict_at(part, "functionCall", path)
            name = text_at(call, "name", path)
            call_id = optional_text_at(call, "id", path) or self._new_id("call")
            args = optional_dict_at(call, "args", path)
            unparsed = args.get(UNPARSED_ARGUMENTS) if len(args) == 1 else None
            arguments = unparsed if isinstance(unparsed, str) else dump_json(args, f"{path}.functionCall.args")
            self._unanswered.append((call_id, name))
            self.items.append({"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments})
            return
        text = _text_of(part, path)
        if part.get("thought") is True:
            signature = part.get("thoughtSignature")
            item: Json = {"type": "reasoning", "id": self._new_id("rs"), "summary": []}
            if text:
                item["summary"] = [{"type": "summary_text", "text": text}]
            if signature:
                item["encrypted_content"] = _decode_signature(signature, path)
            self.items.append(item)
        elif self.items and self.items[-1].get("role") == "assistant":
            self.items[-1]["content"] += output_message(text, self._new_id)["content"]
        elif text or not part.get("thoughtSignature"):  # a part that only carries a signature says nothing
            self.items.append(output_message(text, self._new_id))

    def _add_of_user(self, part: Json, path: str) -> None:
        if part.get("functionResponse") is not None:
            self._add_result(dict_at(part, "functionResponse", path), path)
            return
        if not self.items or self.items[-1].get("role") != "user":
            self.items.append({"type": "message", "role": "user", "content": []})
        self.items[-1]["content"].append(_input_part(part, path))

    def _add_result(self, result: Json, path: str) -> None:
        name, call_id = optional_text_at(result, "name", path), optional_text_at(result, "id", path)
        by_id = [call for call in self._unanswered if call[0] == call_id]
        by_name = [call for call in self._unanswered if call[1] == name]
        if not by_id and not by_name:
            raise ConversionError(
                f"no function call of the conversation waits for a result of {name!r}", where=f"{path}.functionResponse"
            )
        call = (by_id or by_name)[0]
        self._unanswered.remove(call)
        self.items.append({"type": "function_call_output", "call_id": call[0], "output": _output_of(result, path)})


def _output_of(result: Json, path: str) -> str | list[Json]:
    """Return the output of a function: its text if that is all, else the JSON; with media, a list of parts."""
    response = optional_dict_at(result, "response", path)
    values = [response[key] for key in ("output", "result", "error") if key in response]
    is_text = len(response) == 1 and len(values) == 1 and isinstance(values[0], str)
    text = values[0] if is_text else dump_json(response, f"{path}.functionResponse.response")
    media = optional_list_at(result, "parts", path)
    if not media:
        return str(text)
    parts = [_input_part(part, location) for part, location in iter_dicts(media, f"{path}.functionResponse.parts")]
    return [{"type": "input_text", "text": text}, *parts]


def _input_part(part: Json, path: str) -> Json:
    """Convert a part of the user: text, or an image or file inside the request or at an address."""
    if part.get("inlineData") is not None:
        blob = dict_at(part, "inlineData", path)
        media_type, data = text_at(blob, "mimeType", path), text_at(blob, "data", path)
        url = f"data:{media_type};base64,{_standard_base64(data)}"
        if media_type.startswith("image/"):
            return {"type": "input_image", "image_url": url, "detail": "auto"}
        if media_type in _AUDIO_FORMATS:
            audio = {"data": _standard_base64(data), "format": _AUDIO_FORMATS[media_type]}
            return {"type": "input_audio", "input_audio": audio}
        name = optional_text_at(blob, "displayName", path) or "file"
        return {"type": "input_file", "filename": name, "file_data": url}
    if part.get("fileData") is not None:
        file = dict_at(part, "fileData", path)
        url = text_at(file, "fileUri", path)
        is_public = url.startswith(("https://", "http://")) and not url.startswith(_UPLOADED_FILES)
        if is_public and optional_text_at(file, "mimeType", path).startswith("image/"):
            return {"type": "input_image", "image_url": url, "detail": "auto"}
        raise inexpressible(f"the file {url}", RESPONSES, path, fix="send it as inlineData")
    return {"type": "input_text", "text": _text_of(part, path)}


def _text_of(part: Json, path: str) -> str:
    if part.get("text") is None and not part.get("thoughtSignature"):
        kind = next((key for key, value in part.items() if isinstance(value, dict)), "an empty part")
        raise inexpressible(kind, RESPONSES, path)
    return optional_text_at(part, "text", path)


def _joined_text(content: Any, path: str) -> str:
    """Return the text of a system instruction: a string, a part, or a content with parts of text."""
    if isinstance(content, str):
        return content
    parts = [content] if "text" in expect_dict(content, path) else optional_list_at(content, "parts", path)
    return "\n\n".join(_text_of(expect_dict(part, path), path) for part in parts)


def _standard_base64(data: str) -> str:
    """Return base64 in the alphabet of data URLs; some clients send the alphabet for URLs."""
    return data.replace("-", "+").replace("_", "/")


def _decode_signature(signature: Any, path: str) -> str:
    try:
        return base64.b64decode(_standard_base64(expect_text(signature, path)), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise ConversionError("is not a signature that this server gave", where=f"{path}.thoughtSignature") from None


def encode_signature(ciphertext: str) -> str:
    """Return the ciphertext of reasoning as the `thoughtSignature` of a part, which clients decode as base64."""
    return base64.b64encode(ciphertext.encode()).decode("ascii")


def _options(config: Json) -> Json:
    """Convert the generation options."""
    if config.get("candidateCount") not in (None, 1):
        raise inexpressible(f"{config['candidateCount']} candidates", RESPONSES, "generationConfig.candidateCount")
    params = {name: config[key] for key, name in _OPTIONS.items() if config.get(key) is not None}
    thinking = optional_dict_at(config, "thinkingConfig", "generationConfig")
    level = optional_text_at(thinking, "thinkingLevel", "generationConfig.thinkingConfig").lower()
    if level and level != "thinking_level_unspecified":
        params["reasoning"] = {"effort": level}
    schema = config.get("responseJsonSchema")
    if schema is None and config.get("responseSchema") is not None:
        schema = json_schema(config["responseSchema"], "generationConfig.responseSchema")
    if schema is not None:
        params["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}}
    elif config.get("responseMimeType") == "application/json":
        params["text"] = {"format": {"type": "json_object"}}
    return params


def _function_tools(body: Json) -> list[Json]:
    """Return the declared functions; hosted tools are dropped."""
    functions: list[Json] = []
    for tool, path in iter_dicts(optional_list_at(body, "tools", "request"), "tools"):
        declarations = optional_list_at(tool, "functionDeclarations", path)
        for declaration, location in iter_dicts(declarations, f"{path}.functionDeclarations"):
            functions.append(_function_tool(declaration, location))
    return functions


def _function_tool(declaration: Json, path: str) -> Json:
    function: Json = {"type": "function", "name": text_at(declaration, "name", path)}
    if declaration.get("description") is not None:
        function["description"] = text_at(declaration, "description", path)
    parameters = declaration.get("parametersJsonSchema")
    if parameters is None and declaration.get("parameters") is not None:
        parameters = json_schema(declaration["parameters"], f"{path}.parameters")
    return {**function, "parameters": parameters or {"type": "object", "properties": {}}, "strict": False}


def _tool_choice(tools: list[Json], config: Json) -> Json:
    """Return the tools and the choice among them; a list of allowed names leaves out the other tools."""
    path = "toolConfig.functionCallingConfig"
    mode = optional_text_at(config, "mode", path)
    if not mode:
        return {"tools": tools}
    if mode not in _MODES:
        raise inexpressible(mode, f"{RESPONSES} as a mode of function calls", f"{path}.mode")
    names = optional_list_at(config, "allowedFunctionNames", path)
    unknown = [name for name in names if name not in [tool["name"] for tool in tools]]
    if unknown:
        raise ConversionError(f"no tool is named {unknown[0]!r}", where=f"{path}.allowedFunctionNames")
    if _MODES[mode] == "required" and len(names) == 1:
        return {"tools": tools, "tool_choice": {"type": "function", "name": names[0]}}
    return {"tools": [tool for tool in tools if not names or tool["name"] in names], "tool_choice": _MODES[mode]}


def json_schema(schema: Any, path: str) -> Json:
    """Convert a schema of Gemini to JSON Schema: types in lower case, counts as numbers, `nullable` as a type."""
    schema = expect_dict(schema, path)
    converted: Json = {key: value for key, value in schema.items() if key not in _GEMINI_ONLY_SCHEMA}
    if isinstance(schema.get("type"), str):
        kind = schema["type"].lower()
        converted["type"] = [kind, "null"] if schema.get("nullable") is True else kind
    for key in _SCHEMA_COUNTS:
        if isinstance(schema.get(key), str) and schema[key].isdecimal():
            converted[key] = int(schema[key])
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            converted[key] = json_schema(schema[key], f"{path}.{key}")
    for key in ("properties", "$defs", "defs"):
        if isinstance(schema.get(key), dict):
            converted[key] = {name: json_schema(inner, f"{path}.{key}") for name, inner in schema[key].items()}
    for key in ("anyOf", "allOf", "oneOf", "prefixItems"):
        if schema.get(key) is not None:
            converted[key] = [json_schema(inner, f"{path}.{key}") for inner in expect_list(schema[key], path)]
    return converted
