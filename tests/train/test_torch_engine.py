"""The engine samples what the model says, whatever else is in the batch, and weights change only between steps."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: python3 dev.py train")

from nemo_gym.errors import ModelFailed  # noqa: E402
from nemo_gym.training import torch_engine  # noqa: E402
from nemo_gym.training.grpo import token_logprobs  # noqa: E402
from nemo_gym.training.tiny_model import WORDS, TinyTransformer  # noqa: E402
from nemo_gym.training.torch_engine import Generation, TorchEngine, _vocabulary_size  # noqa: E402
from nemo_gym.training.types import Sample  # noqa: E402

SECONDS = 60.0
PROMPTS = [[2, 6, 7], [2, 0, 0, 9, 5, 3], [2], [2, 6, 7, 8, 9, 10, 5, 3]]
NO_END = len(WORDS)
"""An id that is never sampled, so that every reply has the full length."""


@pytest.fixture
def model() -> TinyTransformer:
    torch.manual_seed(0)
    return TinyTransformer()


@pytest.fixture
def engine(model: TinyTransformer) -> Iterator[TorchEngine]:
    engine = TorchEngine(model, [NO_END])
    yield engine
    engine.close()


def sample_of(prompt: list[int], reply: Generation) -> Sample:
    tokens = prompt + reply.token_ids
    mask = [0] * len(prompt) + [1] * len(reply.token_ids)
    return Sample(tokens, mask, [0.0] * len(prompt) + reply.log_probs, len(prompt), [])


def gaps(model: TinyTransformer, prompt: list[int], reply: Generation) -> list[float]:
    """Return the differences to the log-probs of a forward pass without padding."""
    with torch.no_grad():
        computed = token_logprobs(model, [sample_of(prompt, reply)])[0].tolist()
    return [abs(ours - theirs) for ours, theirs in zip(reply.log_probs, computed[len(prompt) :], strict=True)]


def test_log_probs_in_a_padded_batch_are_those_of_the_sequence_alone(
    engine: TorchEngine, model: TinyTransformer
) -> None:
    """A mask made from token ids would hide the tokens that have the padding's id (0), as in the second prompt."""
    futures = [engine.submit(prompt, max_tokens=8) for prompt in PROMPTS]
    replies = [future.result(SECONDS) for future in futures]

    assert max(gap for prompt, reply in zip(PROMPTS, replies, strict=True) for gap in gaps(model, prompt, reply)) < 1e-5
    assert [reply.finish_reason for reply in replies] == ["length"] * 4


def test_the_padding_token_counts_as_a_token_of_the_prompt(engine: TorchEngine) -> None:
    """Two prompts that differ in such a token have different distributions."""
    replies = [engine.submit(prompt, max_tokens=1, temperature=0.0).result(SECONDS) for prompt in ([2, 0, 0], [2])]

    assert replies[0].log_probs != replies[1].log_probs


def test_a_seed_gives_the_same_reply_in_any_batch(engine: TorchEngine) -> None:
    """A rollout can be repeated although its neighbours in the batch differ."""
    alone = engine.submit(PROMPTS[0], max_tokens=6, seed=7).result(SECONDS)
    engine.pause()
    others = [engine.submit(prompt, max_tokens=6) for prompt in PROMPTS]
    together = engine.submit(PROMPTS[0], max_tokens=6, seed=7)
    engine.resume()

    assert together.result(SECONDS).token_ids == alone.token_ids
    assert all(len(other.result(SECONDS).token_ids) == 6 for other in others)


def test_sampling_follows_the_distribution(engine: TorchEngine, model: TinyTransformer) -> None:
    """The log-probs belong to the tokens only if these are drawn from that distribution."""
    with torch.no_grad():
        ids = torch.tensor([PROMPTS[0]])
        expected = model(ids, torch.ones_like(ids))[0, -1].softmax(-1)
    futures = [engine.submit(PROMPTS[0], max_tokens=1) for _ in range(2000)]
    counts = torch.bincount(torch.tensor([f.result(SECONDS).token_ids[0] for f in futures]), minlength=len(WORDS))

    assert float((counts / 2000 - expected).abs().max()) < 0.05


def test_the_end_token_ends_a_turn(model: TinyTransformer) -> None:
    """Tokens after the end of a turn would be trained on although the agent never reads them."""
    engine = TorchEngine(model, range(len(WORDS)))
    try:
        reply = engine.submit([2], max_tokens=8).result(SECONDS)
    finally:
        engine.close()

    assert (len(reply.token_ids), reply.finish_reason) == (1, "stop")


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_a_limit_below_one_ends_a_request(engine: TorchEngine, max_tokens: int) -> None:
    """A request without an end runs past the context length, where the model raises and fails the whole batch."""
    assert engine.submit([2], max_tokens=max_tokens).result(SECONDS).finish_reason == "length"


def test_the_vocabulary_is_that_of_the_input_embedding(engine: TorchEngine) -> None:
    """A model of `transformers` may read more tokens than it can sample, and any other shows its logits."""

    class WithImageTokens(TinyTransformer):
        def get_input_embeddings(self) -> object:
            return torch.nn.Embedding(len(WORDS) + 8, 2)

    assert engine.vocabulary_size == len(WORDS)
    assert _vocabulary_size(WithImageTokens()) == len(WORDS) + 8


class HeldModel(TinyTransformer):
    """A model whose steps wait until the test lets them go on."""

    first_step: threading.Event
    go_on: threading.Event

    def forward(self, *args: object, **options: object) -> object:
        self.first_step.set()
        assert self.go_on.wait(SECONDS)
        return super().forward(*args, **options)  # type: ignore[arg-type]


@pytest.fixture
def held_engine() -> Iterator[TorchEngine]:
    """Return an engine whose first step has begun, for a request of three tokens."""
    engine = TorchEngine(TinyTransformer(), [NO_END])
    model = engine._model
    model.first_step, model.go_on = threading.Event(), threading.Event()
    model.__class__ = HeldModel
    yield engine
    model.go_on.set()
    engine.close()


def test_a_request_joins_while_a_step_runs(held_engine: TorchEngine) -> None:
    """The policy submits in its event loop: waiting for a step would stop all its connections for that time."""
    first = held_engine.submit([2], max_tokens=3)
    assert held_engine._model.first_step.wait(SECONDS)
    with ThreadPoolExecutor(1) as other:
        try:
            second = other.submit(held_engine.submit, [2], max_tokens=1).result(5)
        finally:
            held_engine._model.go_on.set()

    assert len(second.result(SECONDS).token_ids) == 1
    assert len(first.result(SECONDS).token_ids) == 3


@pytest.mark.parametrize("call", ["update", "pause"])
def test_an_update_or_pause_comes_after_the_current_step_and_before_the_next(
    held_engine: TorchEngine, model: TinyTransformer, call: str
) -> None:
    """A trainer must know which weights sampled a token, and a busy engine must not keep it waiting."""
    future = held_engine.submit([2], max_tokens=3)
    assert held_engine._model.first_step.wait(SECONDS)
    arguments = (model, 5) if call == "update" else ()
    with ThreadPoolExecutor(1) as other:
        try:
            waiting = other.submit(getattr(held_engine, call), *arguments)
            while not held_engine._holds:
                assert not waiting.done(), "it did not wait for the step"
            assert (held_engine.version, held_engine.tokens_generated) == (0, 0)
        finally:
            held_engine._model.go_on.set()
        waiting.result(SECONDS)
    if call == "pause":
        assert held_engine.tokens_generated == 1
        held_engine.update(model, 5)
        held_engine.resume()

    assert future.result(SECONDS).weight_version == [0, 5]


def test_a_cancelled_request_frees_its_place(engine: TorchEngine) -> None:
    """A client that has gone must not keep the engine busy."""
    engine.pause()
    futures = [engine.submit([2], max_tokens=1000 - 2) for _ in range(3)]
    for future in futures:
        assert future.cancel()
    last = engine.submit([2], max_tokens=1)
    engine.resume()

    assert len(last.result(SECONDS).token_ids) == 1
    assert engine.requests_in_flight == 0


def test_a_model_that_returns_nan_fails_its_requests_and_not_the_engine(engine: TorchEngine) -> None:
    """Weights that have diverged must not become samples."""
    good = {name: value.clone() for name, value in engine._model.state_dict().items()}
    engine.update({name: value * torch.nan for name, value in good.items()}, 1)
    with pytest.raises(ModelFailed, match="not numbers"):
        engine.submit([2], max_tokens=1).result(SECONDS)
    engine.update(good, 2)

    assert engine.submit([2], max_tokens=1).result(SECONDS).weight_version == 2


def test_closing_fails_the_requests_in_flight(model: TinyTransformer) -> None:
    """No caller waits for an engine that has ended."""
    engine = TorchEngine(model, [NO_END])
    engine.pause()
    future = engine.submit([2], max_tokens=1)
    engine.close()

    with pytest.raises(ModelFailed, match="closed"):
        future.result(SECONDS)
    with pytest.raises(ModelFailed, match="closed"):
        engine.submit([2], max_tokens=1)


def test_closing_abandons_a_step_that_does_not_end(held_engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that stops must not hang because its model does."""
    monkeypatch.setattr(torch_engine, "CLOSE_SECONDS", 0.01)
    future = held_engine.submit([2], max_tokens=3)
    assert held_engine._model.first_step.wait(SECONDS)

    held_engine.close()

    with pytest.raises(ModelFailed, match="closed"):
        future.result(SECONDS)
