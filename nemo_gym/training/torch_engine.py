"""Generate tokens with a torch model: one thread, continuous batches, the log-prob of every sampled token.

Each step computes one token for every running request, so requests join and leave between steps. Sequences are padded
on the right and the attention mask follows from their lengths: a token that happens to have the padding's id is a token
like any other. There is no key-value cache, which keeps the log-probs equal to those of a trainer's forward pass and
the interface to one call, `model(input_ids=…, attention_mask=…)`; it suits small models and short conversations.
"""

import copy
import random
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from nemo_gym.errors import ModelFailed

MAX_BATCH_SIZE = 256
CLOSE_SECONDS = 60.0
"""Longest wait for the current step when the engine is closed."""
GATHER_SECONDS = 0.001
"""Time for which an idle engine waits after a request arrives, so that concurrent requests share their first step."""


@dataclass(frozen=True, slots=True)
class Generation:
    """The tokens of one request."""

    token_ids: list[int]
    log_probs: list[float]
    """Log-probs under the distribution that the tokens were sampled from, temperature included."""
    finish_reason: str
    weight_version: int | list[int]
    """The version of the weights; the oldest and the newest if they were updated meanwhile."""


@dataclass(slots=True, eq=False)
class _Request:
    """A request while it is running."""

    tokens: list[int]
    max_tokens: int
    temperature: float
    draw: Callable[[], float]
    future: "Future[Generation]" = field(default_factory=Future)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def generation(self, finish_reason: str) -> Generation:
        oldest, newest = min(self.versions), max(self.versions)
        version: int | list[int] = oldest if oldest == newest else [oldest, newest]
        return Generation(self.tokens[-len(self.log_probs) :], self.log_probs, finish_reason, version)


def forward_logits(model: nn.Module, sequences: list[list[int]]) -> Tensor:
    """Return the logits of sequences of different lengths: [sequence, position, token], padded on the right."""
    device = next(model.parameters()).device
    lengths = torch.tensor([len(tokens) for tokens in sequences], device=device)
    width = int(lengths.max())
    ids = torch.tensor([tokens + [0] * (width - len(tokens)) for tokens in sequences], device=device)
    mask = torch.arange(width, device=device)[None, :] < lengths[:, None]
    output = model(input_ids=ids, attention_mask=mask.long())
    logits: Tensor = getattr(output, "logits", output)
    return logits


@torch.inference_mode()
def _vocabulary_size(model: nn.Module) -> int:
    """Return the size of the input embedding of a `transformers` model, or the number of logits of any other."""
    find = getattr(model, "get_input_embeddings", None)
    embedding = find() if find is not None else None
    if isinstance(embedding, nn.Embedding):
        return int(embedding.num_embeddings)
    return int(forward_logits(model, [[0]]).shape[-1])


class TorchEngine:
    """Generates with its own copy of `model`, which changes only in `update`."""

    def __init__(
        self, model: nn.Module, end_ids: Collection[int], *, seed: int = 0, max_batch_size: int = MAX_BATCH_SIZE
    ) -> None:
        self._model = copy.deepcopy(model).eval().requires_grad_(False)
        self.vocabulary_size = _vocabulary_size(self._model)
        """Number of token ids that the model reads."""
        self._end_ids = frozenset(end_ids)
        self._random = random.Random(seed)
        self._max_batch_size = max_batch_size
        self._changed = threading.Condition()
        """Guards the next four fields, and only for moments: `submit` is called in event loops."""
        self._waiting: deque[_Request] = deque()
        self._paused = False
        self._closed = False
        self._holds = 0
        """Number of callers that wait for the end of the current step or use the time before the next one."""
        self._stepping = threading.Lock()
        """Held during a step, and by those who need the time between two steps; taken before `_changed`, if both."""
        self._running: list[_Request] = []
        self._version = 0
        self.tokens_generated = 0
        """Number of tokens sampled since the start."""
        self._thread = threading.Thread(target=self._run, name="nemo-gym-torch-engine", daemon=True)
        self._thread.start()

    @property
    def version(self) -> int:
        return self._version

    @property
    def requests_in_flight(self) -> int:
        return len(self._running) + len(self._waiting)

    def submit(
        self, prompt: list[int], *, max_tokens: int, temperature: float = 1.0, seed: int | None = None
    ) -> "Future[Generation]":
        """Start generating; cancelling the future ends the request before its next token.

        Temperature 0 takes the most likely token and reports its log-prob at temperature 1.
        """
        draw = (self._random if seed is None else random.Random(seed)).random
        request = _Request(list(prompt), max_tokens, temperature, draw)
        with self._changed:
            if self._closed:
                raise ModelFailed("the policy is closed")
            self._waiting.append(request)
            self._changed.notify_all()
        return request.future

    def update(self, weights: "nn.Module | Mapping[str, Tensor] | None", version: int) -> None:
        """Copy weights between two steps and set their version; requests in flight continue with the new weights."""
        state = weights.state_dict() if isinstance(weights, nn.Module) else weights
        with self._between_steps():
            if state is not None:
                self._model.load_state_dict(state)
            self._version = version

    def pause(self) -> None:
        """Return when the current step has ended; no token is generated until `resume`."""
        with self._between_steps():
            self._paused = True

    def resume(self) -> None:
        """Continue with the requests in flight."""
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    def close(self) -> None:
        """Stop the thread after the current step; requests in flight fail. A step that does not end is abandoned."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(CLOSE_SECONDS)
        for request in [*self._running, *self._waiting]:
            _fail(request, ModelFailed("the policy was closed"))

    @contextmanager
    def _between_steps(self) -> Iterator[None]:
        """Wait for the end of the current step, and keep the next one from starting."""
        with self._changed:
            self._holds += 1
        try:
            with self._stepping:
                yield
        finally:
            with self._changed:
                self._holds -= 1
                self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not (self._running or self._waiting or self._closed):
                    self._changed.wait()
                    self._changed.wait(GATHER_SECONDS)  # releases the lock: concurrent requests can join
                while (self._paused or self._holds) and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
            with self._stepping:
                finished = self._step()
            for request, result in finished:  # outside the locks: callbacks of a future may submit a request
                if isinstance(result, Generation):
                    _finish(request, result)
                else:
                    _fail(request, result)

    def _step(self) -> list[tuple[_Request, Generation | Exception]]:
        """Generate one token for every running request, and return those that ended."""
        with self._changed:
            if self._paused or self._holds:  # since `_run` looked
                return []
            while self._waiting and len(self._running) < self._max_batch_size:
                self._running.append(self._waiting.popleft())
        self._running = [request for request in self._running if not request.future.cancelled()]
        if not self._running:
            return []
        try:
            tokens, log_probs = self._sample()
        except Exception as error:  # whatever the model raises belongs to these requests, not to the engine
            failed, self._running = self._running, []
            problem = ModelFailed(f"the model failed: {type(error).__name__}: {error}")
            return [(request, problem) for request in failed]
        self.tokens_generated += len(tokens)
        finished: list[tuple[_Request, Generation | Exception]] = []
        for request, token, log_prob in zip(self._running, tokens, log_probs, strict=True):
            request.tokens.append(token)
            request.log_probs.append(log_prob)
            request.versions.append(self._version)
            if token in self._end_ids:
                finished.append((request, request.generation("stop")))
            elif len(request.log_probs) >= request.max_tokens:
                finished.append((request, request.generation("length")))
        ended = {id(request) for request, _ in finished}
        self._running = [request for request in self._running if id(request) not in ended]
        return finished

    @torch.inference_mode()
    def _sample(self) -> tuple[list[int], list[float]]:
        """Return the next token of every running request and its log-prob."""
        requests = self._running
        logits = forward_logits(self._model, [request.tokens for request in requests])
        device = logits.device
        rows = torch.arange(len(requests), device=device)
        last = torch.tensor([len(request.tokens) - 1 for request in requests], device=device)
        temperatures = torch.tensor([request.temperature for request in requests], device=device)
        is_greedy = temperatures == 0
        scale = torch.where(is_greedy, torch.ones_like(temperatures), temperatures)
        log_probs = (logits[rows, last].float() / scale[:, None]).log_softmax(-1)
        if bool(log_probs.isnan().any()):
            raise ValueError("the logits are not numbers")
        # One uniform number per request: a request with a seed does not depend on the others in its batch.
        cumulative = log_probs.double().exp().cumsum(-1)
        uniform = torch.tensor([request.draw() for request in requests], dtype=torch.float64, device=device)
        sampled = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)[:, 0]
        tokens = torch.where(is_greedy, log_probs.argmax(-1), sampled.clamp(max=log_probs.shape[-1] - 1))
        return tokens.tolist(), log_probs[rows, tokens].tolist()


def _finish(request: _Request, generation: Generation) -> None:
    # A request is done already if the engine was closed during its step.
    if not request.future.done() and request.future.set_running_or_notify_cancel():
        request.future.set_result(generation)


def _fail(request: _Request, problem: Exception) -> None:
    if not request.future.done() and request.future.set_running_or_notify_cancel():
        request.future.set_exception(problem)
