"""Stream an answer from an endpoint and return it as a whole."""

from typing import Any

from nemo_gym.convert.chat_stream import CompletionBuilder
from nemo_gym.convert.chunk_repair import ChunkRepair
from nemo_gym.convert.json_access import new_id
from nemo_gym.convert.response_events import ResponseEventDecoder
from nemo_gym.errors import ConversionError, ModelFailed
from nemo_gym.transport.event_reader import OnEvent
from nemo_gym.transport.model_client import NeMoGymAsyncOpenAI


async def stream_completion(
    client: NeMoGymAsyncOpenAI, request: dict[str, Any], on_chunk: OnEvent, where: str
) -> dict[str, Any]:
    """Give every chunk of an answer to `on_chunk` and return the completion; `where` names the server in errors.

    An endpoint that does not stream answers with a completion, without chunks.

    Raises:
        ModelFailed: the chunks are not those of a complete answer.
    """
    builder, repair = CompletionBuilder(), ChunkRepair(new_id)

    async def add(chunk: dict[str, Any]) -> None:
        chunk = repair.repair(chunk)
        builder.add(chunk)
        await on_chunk(chunk)

    whole = await client.stream("chat/completions", request, add)
    try:
        return whole or builder.completion()
    except ConversionError as error:
        raise ModelFailed(error.problem, where=where) from error


async def stream_response(
    client: NeMoGymAsyncOpenAI, request: dict[str, Any], on_event: OnEvent, where: str
) -> dict[str, Any]:
    """Give the events of an answer (`convert.response_events`) to `on_event` and return the response.

    An endpoint that does not stream answers with a response, without events.

    Raises:
        ModelFailed: the stream ends before the response is finished.
    """
    decoder = ResponseEventDecoder()

    async def forward(event: dict[str, Any]) -> None:
        for each in decoder.feed(event):
            await on_event(each)

    reply = await client.stream("responses", request, forward) or decoder.response
    if reply is None:
        raise ModelFailed("the stream of the endpoint ends before the response is finished", where=where)
    return reply
