"""The model of `gym train demo`: a transformer of two layers with a vocabulary of 21 words, made from nothing.

It starts with random weights, except that attention begins as a copy: the value and output projections are the
identity, and the output uses the word embeddings. So the words of the conversation are a little more likely than
others, the last ones most, and reinforcement learning has something to reinforce. Without this, the model would need
pre-training to find the tool.
"""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from nemo_gym.training.chat_tokens import Json, tool_call

PAD, UNKNOWN, END, ASK = "<pad>", "<unk>", "<end>", "ask"
ROLES = {"user": "<user>", "assistant": "<assistant>", "tool": "<tool>"}
DIGITS = tuple(str(digit) for digit in range(10))
WORDS = (PAD, UNKNOWN, *ROLES.values(), END, ASK, "then", "say", "the", "digit", *DIGITS)
CONTEXT_LENGTH = 32
MAX_TOKENS = 4
"""Tokens of one turn."""


class WordTokenizer:
    """A word-level tokenizer with the methods of `transformers` that a policy needs. Punctuation is dropped."""

    def __init__(self) -> None:
        self._ids = {word: number for number, word in enumerate(WORDS)}

    @property
    def eos_token_id(self) -> int:
        return self._ids[END]

    @property
    def ask_token_id(self) -> int:
        """The word that calls the tool; it ends a turn, as special tokens for tool calls do in larger models."""
        return self._ids[ASK]

    def encode(self, text: str) -> list[int]:
        """Return the id of each word; unknown words share one id."""
        return [self._ids.get(word, self._ids[UNKNOWN]) for word in re.findall(r"<\w+>|\w+", text.lower())]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the words, separated by spaces."""
        words = [WORDS[token] for token in token_ids]
        return " ".join(word for word in words if not (skip_special_tokens and word.startswith("<")))

    def apply_chat_template(
        self,
        conversation: Sequence[Json],
        *,
        tools: Any = None,  # noqa: ARG002 - the vocabulary has the one tool
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        return_dict: bool = False,  # noqa: ARG002
    ) -> Any:
        """Render `<role> words <end>` for each message; a tool call is the word `ask`, which ends the turn itself."""
        parts = []
        for message in conversation:
            calls = [ASK] if message.get("tool_calls") else []
            parts += [ROLES.get(message["role"], ROLES["user"]), message.get("content") or "", *(calls or [END])]
        text = " ".join([*parts, *([ROLES["assistant"]] if add_generation_prompt else [])])
        return self.encode(text) if tokenize else text


def parse_turn(text: str) -> Json:
    """Read a turn: with the word `ask` it calls the tool, otherwise its words are the message."""
    words = text.split()
    if ASK not in words:
        return {"content": text}
    text_before = " ".join(words[: words.index(ASK)])
    return {"content": text_before or None, "tool_calls": [tool_call(ASK, {})]}


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each added to its input."""

    def __init__(self, width: int, heads: int, copy_strength: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key = nn.Linear(width, 2 * width)
        self.value, self.output = nn.Linear(width, width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        nn.init.normal_(self.query_key.weight, std=0.1)
        for layer, strength in ((self.value, copy_strength), (self.output, 1.0)):
            with torch.no_grad():
                layer.weight.copy_(torch.eye(width) * strength)
        for layer in (self.query_key, self.value, self.output):
            nn.init.zeros_(layer.bias)

    def forward(self, hidden: Tensor, bias: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        normal = self.norm_attention(hidden)
        query, key = self.query_key(normal).chunk(2, dim=-1)
        heads = [part.view(batch, length, self.heads, -1).transpose(1, 2) for part in (query, key, self.value(normal))]
        attended = functional.scaled_dot_product_attention(*heads, attn_mask=bias)
        hidden = hidden + self.output(attended.transpose(1, 2).reshape(batch, length, width))
        result: Tensor = hidden + self.feed(self.norm_feed(hidden))
        return result


class TinyTransformer(nn.Module):
    """A causal language model over `WORDS`."""

    context_length = CONTEXT_LENGTH

    def __init__(
        self, *, width: int = 64, heads: int = 4, layers: int = 2, copy_strength: float = 2.0, logit_scale: float = 0.5
    ) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(len(WORDS), width), nn.Embedding(CONTEXT_LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads, copy_strength) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.logit_scale = logit_scale
        # As in ALiBi: attention decreases with the distance, at another rate in each head.
        self.register_buffer("slopes", 0.5 ** torch.arange(1, heads + 1), persistent=False)
        nn.init.normal_(self.words.weight, std=width**-0.5)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        length, is_token = input_ids.shape[1], attention_mask.bool()
        positions = (is_token.cumsum(1) - 1).clamp(min=0)  # the same with padding on either side
        hidden = self.words(input_ids) + self.positions(positions)
        steps = torch.arange(length, device=input_ids.device)
        distances = steps[:, None] - steps[None, :]
        # Every position sees itself: a row without any key would be NaN, and padding must not become NaN.
        allowed = ((distances >= 0) & is_token[:, None, None, :]) | (distances == 0)
        bias = -self.slopes[:, None, None] * distances
        bias = torch.where(allowed, bias, torch.full_like(bias, -torch.inf))
        for block in self.blocks:
            hidden = block(hidden, bias)
        logits: Tensor = functional.linear(self.norm(hidden), self.words.weight) * self.logit_scale
        return logits
