"""The cost of tokens from a price table. No prices are built in: they change, and differ between providers.

```yaml
prices:                   # US dollars per million tokens
  my-model: {input: 2.0, cached_input: 0.5, output: 8.0}
  my-model-2026-*: {input: 1.0, output: 4.0}
```
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nemo_gym.errors import ConfigError
from nemo_gym.wire.stored_rollout import StoredRollout

PRICES_KEY = "prices"
TOKENS_PER_PRICE = 1_000_000


class TokenPrice(BaseModel):
    """The prices of one model, in US dollars per million tokens."""

    model_config = ConfigDict(extra="forbid")

    input: float = Field(ge=0)
    cached_input: float | None = Field(default=None, ge=0)
    """Price of input tokens that the provider had cached; default: the price of other input tokens."""
    output: float = Field(ge=0)
    """Price of output tokens, reasoning included."""

    def cost(self, tokens: Mapping[str, int]) -> float:
        """Return the cost of tokens by kind, as `StoredRollout.tokens_by_kind` returns them."""
        cached = tokens.get("cached", 0)
        cached_price = self.input if self.cached_input is None else self.cached_input
        new = max(0, tokens.get("input", 0) - cached)
        total = new * self.input + cached * cached_price + tokens.get("output", 0) * self.output
        return total / TOKENS_PER_PRICE


class PriceTable:
    """Prices by name of the model; a name may contain `*`. The exact name has priority, then the longest pattern."""

    def __init__(self, prices: Mapping[str, Any] | None) -> None:
        """Check the prices of a configuration.

        Raises:
            ConfigError: an entry is not `{input: …, output: …}`.
        """
        self._prices: dict[str, TokenPrice] = {}
        for name, entry in (prices or {}).items():
            try:
                self._prices[str(name)] = TokenPrice.model_validate(entry)
            except ValidationError as error:
                problems = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
                fix = "{input: 2.0, output: 8.0}, in dollars per million tokens"
                raise ConfigError(problems, where=f"{PRICES_KEY}.{name}", fix=fix) from None
        self._patterns = sorted((name for name in self._prices if "*" in name), key=len, reverse=True)

    def __bool__(self) -> bool:
        return bool(self._prices)

    def find(self, model: str) -> TokenPrice | None:
        """Return the price of a model; None if the table has none."""
        name = model if model in self._prices else next((one for one in self._patterns if fnmatchcase(model, one)), "")
        return self._prices.get(name)

    def cost_of_record(self, record: Mapping[str, Any]) -> float | None:
        """Return the cost of the model calls of a rollout; None if its model has no price."""
        stored = StoredRollout(record)
        tokens = stored.tokens_by_kind()
        if not tokens:
            return 0.0
        price = self.find(stored.model)
        return None if price is None else price.cost(tokens)

    def total(self, tokens_by_model: Iterable[tuple[str, Mapping[str, int]]]) -> tuple[float, list[str]]:
        """Return the cost of the tokens of several models, and the models that have no price."""
        cost, unknown = 0.0, []
        for model, tokens in tokens_by_model:
            price = self.find(model)
            if price is None:
                unknown.append(model or "a model without a name")
            else:
                cost += price.cost(tokens)
        return cost, unknown
