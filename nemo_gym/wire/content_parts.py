"""Content parts of Responses messages: dictionaries in a request, objects in a response."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from nemo_gym.wire.base import TEXT_OR_LIST, Json, OpenForeign, TaggedUnion, WireModel, field_text, open_dict


@open_dict
class NeMoGymResponseInputText(TypedDict):
    text: str
    type: Literal["input_text"]


@open_dict
class NeMoGymResponseInputImage(TypedDict):
    type: Literal["input_image"]
    detail: NotRequired[Literal["low", "high", "auto", "original"] | None]
    file_id: NotRequired[str | None]
    image_url: NotRequired[str | None]


@open_dict
class NeMoGymResponseInputFile(TypedDict):
    type: Literal["input_file"]
    file_data: NotRequired[str | None]
    file_id: NotRequired[str | None]
    file_url: NotRequired[str | None]
    filename: NotRequired[str | None]


@open_dict
class InputAudioData(TypedDict):
    data: str
    format: str


@open_dict
class NeMoGymResponseInputAudio(TypedDict):
    input_audio: InputAudioData
    type: Literal["input_audio"]


@open_dict
class NeMoGymResponseInputVideo(TypedDict):
    """Our extension: a video by URL or inline, never both."""

    type: Literal["input_video"]
    video_url: NotRequired[str | None]
    video: NotRequired[str | None]


@open_dict
class OutputTextParam(TypedDict):
    """An earlier text of the model, sent back without the id of an output message."""

    text: str
    type: Literal["output_text"]
    annotations: NotRequired[list[Json]]
    logprobs: NotRequired[list[Json] | None]


@open_dict
class RefusalParam(TypedDict):
    refusal: str
    type: Literal["refusal"]


def _check_video(part: NeMoGymResponseInputVideo) -> NeMoGymResponseInputVideo:
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
    OpenForeign,
]
InputContent = Annotated[str | list[InputContentPart], TEXT_OR_LIST]


class Annotation(WireModel):
    """A citation inside the text; its other fields depend on the type."""

    type: str


class TopLogprob(WireModel):
    token: str
    bytes: list[int]
    logprob: float


class Logprob(WireModel):
    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[TopLogprob]


class NeMoGymResponseOutputText(WireModel):
    annotations: list[Annotation] = []
    text: str
    type: Literal["output_text"] = "output_text"
    logprobs: list[Logprob] | None = None


class NeMoGymResponseOutputRefusal(WireModel):
    refusal: str
    type: Literal["refusal"] = "refusal"


def output_part_type(part: Any) -> str | None:
    """Return the `type` of a part, or the one its fields imply: older datasets omit it."""
    if isinstance(part, dict) and "type" not in part:
        return "refusal" if "refusal" in part else "output_text"
    return field_text(part, "type")


OutputContentPart = Annotated[
    NeMoGymResponseOutputText | NeMoGymResponseOutputRefusal, TaggedUnion(tag=output_part_type)
]


class NeMoGymSummary(WireModel):
    text: str
    type: Literal["summary_text"] = "summary_text"


class NeMoGymReasoningText(WireModel):
    text: str
    type: Literal["reasoning_text"] = "reasoning_text"
