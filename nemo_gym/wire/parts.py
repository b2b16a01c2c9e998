"""Content parts of Responses messages: dictionaries on the way in, objects in what the model said."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, Discriminator, Tag
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from nemo_gym.wire.base import DUMP_BY_CLASS, Json, OpenForeign, WireModel, open_dict, text_or_list


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
    """Our extension: a video by address or inline, never both."""

    type: Literal["input_video"]
    video_url: NotRequired[str | None]
    video: NotRequired[str | None]


@open_dict
class OutputTextParam(TypedDict):
    """What the model said earlier, sent back without the id that would make it an output message."""

    text: str
    type: Literal["output_text"]
    annotations: NotRequired[list[Json]]
    logprobs: NotRequired[list[Json] | None]


@open_dict
class RefusalParam(TypedDict):
    refusal: str
    type: Literal["refusal"]


def _one_video(part: NeMoGymResponseInputVideo) -> NeMoGymResponseInputVideo:
    if bool(part.get("video_url")) == bool(part.get("video")):
        raise PydanticCustomError("video_source", "input_video needs exactly one of `video_url` and `video`, non-empty")
    return part


def part_type(part: Any) -> str | None:
    """The `type` of a content part, wherever it is kept."""
    found = part.get("type") if isinstance(part, Mapping) else getattr(part, "type", None)
    return found if isinstance(found, str) else None


InputContentPart = Annotated[
    Annotated[NeMoGymResponseInputText, Tag("input_text")]
    | Annotated[NeMoGymResponseInputImage, Tag("input_image")]
    | Annotated[NeMoGymResponseInputFile, Tag("input_file")]
    | Annotated[NeMoGymResponseInputAudio, Tag("input_audio")]
    | Annotated[NeMoGymResponseInputVideo, AfterValidator(_one_video), Tag("input_video")]
    | Annotated[OutputTextParam, Tag("output_text")]
    | Annotated[RefusalParam, Tag("refusal")],
    Discriminator(part_type),
    DUMP_BY_CLASS,
    OpenForeign,
]
InputContent = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[InputContentPart], Tag("list")],
    Discriminator(text_or_list),
    DUMP_BY_CLASS,
]


class Annotation(WireModel):
    """A citation inside the text; its further fields depend on the type."""

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
    """The `type` of a part, or the one its fields imply: older datasets leave it out."""
    if isinstance(part, dict) and "type" not in part:
        return "refusal" if "refusal" in part else "output_text"
    return part_type(part)


OutputContentPart = Annotated[
    Annotated[NeMoGymResponseOutputText, Tag("output_text")] | Annotated[NeMoGymResponseOutputRefusal, Tag("refusal")],
    Discriminator(output_part_type),
    DUMP_BY_CLASS,
]


class NeMoGymSummary(WireModel):
    text: str
    type: Literal["summary_text"] = "summary_text"


class NeMoGymReasoningText(WireModel):
    text: str
    type: Literal["reasoning_text"] = "reasoning_text"
