"""Content of Responses input: text, images, files, audio and video, as dictionaries."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, BeforeValidator
from pydantic_core import PydanticCustomError

from nemo_gym.wire.base import TEXT_OR_LIST, AcceptObjects, Json, OpenDict, TaggedUnion


class NeMoGymResponseInputText(OpenDict):
    text: str
    type: Literal["input_text"]


class NeMoGymResponseInputImage(OpenDict):
    type: Literal["input_image"]
    detail: NotRequired[Literal["low", "high", "auto", "original"] | None]
    file_id: NotRequired[str | None]
    image_url: NotRequired[str | None]


class NeMoGymResponseInputFile(OpenDict):
    type: Literal["input_file"]
    file_data: NotRequired[str | None]
    file_id: NotRequired[str | None]
    file_url: NotRequired[str | None]
    filename: NotRequired[str | None]


class InputAudioData(OpenDict):
    data: str
    format: str


class NeMoGymResponseInputAudio(OpenDict):
    input_audio: InputAudioData
    type: Literal["input_audio"]


def _address_of_video(video: Any) -> Any:
    """Return the address of a video; some rows have it as in Chat, `{"url": …}`."""
    return video["url"] if isinstance(video, dict) and "url" in video else video


class NeMoGymResponseInputVideo(OpenDict):
    """Our extension: a video by URL or inline, never both."""

    type: Literal["input_video"]
    video_url: NotRequired[Annotated[str | None, BeforeValidator(_address_of_video)]]
    video: NotRequired[str | None]


class OutputTextParam(OpenDict):
    """An earlier text of the model, sent back without the id of an output message."""

    text: str
    type: Literal["output_text"]
    annotations: NotRequired[list[Json]]
    logprobs: NotRequired[list[Json] | None]


class RefusalParam(OpenDict):
    refusal: str
    type: Literal["refusal"]


def _check_video(part: NeMoGymResponseInputVideo) -> NeMoGymResponseInputVideo:
    """Return a video part unchanged; raise an error unless it has exactly one source."""
    if bool(part.get("video_url")) == bool(part.get("video")):
        raise PydanticCustomError("video_source", "input_video needs exactly one of `video_url` and `video`, non-empty")
    return part


InputContentPart = Annotated[
    NeMoGymResponseInputText
    | NeMoGymResponseInputImage
    | NeMoGymResponseInputFile
    | NeMoGymResponseInputAudio
    | Annotated[NeMoGymResponseInputVideo, AfterValidator(_check_video)]
    | OutputTextParam
    | RefusalParam,
    TaggedUnion(),
    AcceptObjects,
]
InputContent = Annotated[str | list[InputContentPart], TEXT_OR_LIST]
