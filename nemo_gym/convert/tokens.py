"""The training fields a message or item may carry: token ids and log-probabilities of one model call.

The arrays are long and travel by reference: nothing here copies or inspects their elements.
"""

from nemo_gym.convert.shapes import Json
from nemo_gym.errors import ConversionError

REQUIRED_TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
TOKEN_FIELDS = (*REQUIRED_TOKEN_FIELDS, "routed_experts")


def token_fields_of(holder: Json, where: str) -> Json:
    """The token fields of `holder`, all of them or none.

    Raises:
        ConversionError: some required fields are there and some are not.
    """
    found = {name: holder[name] for name in TOKEN_FIELDS if holder.get(name) is not None}
    if not found:
        return found
    missing = [name for name in REQUIRED_TOKEN_FIELDS if name not in found]
    if missing:
        raise ConversionError(f"has {', '.join(found)} but not {', '.join(missing)}", where=where)
    for name in REQUIRED_TOKEN_FIELDS:
        if not isinstance(found[name], list):
            raise ConversionError("expected a list", where=f"{where}.{name}")
    return found
