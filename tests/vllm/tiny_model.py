"""A tiny model for the real engine. Run in the engine's environment, which has torch and transformers.

python tiny_model.py make FOLDER      train a tokenizer and a model that calls a tool, and save both
python tiny_model.py change FOLDER    multiply one weight matrix, so that reloaded weights can be recognized
python tiny_model.py score FOLDER     read `[{"ids": [...], "start": n}]` and print the log-probs of the ids from n on

The model learns to call a tool in a notation that the chat template writes differently, and from texts that are split
into tokens at random, so that it samples tokens that no tokenizer would choose.
"""

import json
import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
CITIES = ["Bern", "Basel", "Chur", "Davos", "Genf", "Lausanne", "Lugano", "Luzern", "Thun", "Zug", "Brig", "Olten"]
TEMPLATE = """
{%- if tools %}{{ '<|im_start|>system\\nTools: ' }}
{%- for tool in tools %}{{ tool.function.name }} {% endfor %}{{ '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}{{ '<|im_start|>user\\n<result>' + message.content + '</result><|im_end|>\\n' }}
{%- else %}{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.content %}{{ message.content if message.content is string else message.content[0].text }}{% endif %}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string else (call.function.arguments | tojson) }}
{{- '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""


def conversation(chance: random.Random) -> list[tuple[str, str]]:
    """Return the turns of one episode: the tool is called for one or two cities, then the answer is given."""
    first, second = chance.sample(CITIES, 2)
    both = chance.random() < 0.7
    question = f"weather in {first} and {second}?" if both else f"weather in {first}?"
    turns = [("system", "Tools: weather "), ("user", question)]
    for city in (first, second) if both else (first,):
        thought = f"<think>I look up {city}.</think>" if chance.random() < 0.5 else ""
        call = f'<tool_call>{{"arguments": {{"city":"{city}"}}, "name": "weather"}}</tool_call>'
        turns += [("assistant", thought + call), ("user", f"<result>{chance.randint(-9, 35)} degrees</result>")]
    return [*turns, ("assistant", f"It is {chance.choice(['cold', 'mild', 'warm'])} in {first}.")]


def trained_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    chance = random.Random(0)
    texts = [text for _ in range(300) for _, text in conversation(chance)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([*texts, "assistant user system tool"] * 2, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE
    )
    fast.save_pretrained(folder)
    return fast


def split_at_random(tokenizer: PreTrainedTokenizerFast, text: str, chance: random.Random) -> list[int]:
    """Encode a text piece by piece: the pieces are cut at random, so that the tokens are not the canonical ones."""
    ids: list[int] = []
    rest = text
    while rest:
        special = next((token for token in SPECIAL if rest.startswith(token)), None)
        following = min((rest.find(token) for token in SPECIAL if token in rest), default=len(rest))
        size = len(special) if special else min(chance.choice([2, 5, 40]), following)
        ids += tokenizer.encode(rest[:size], add_special_tokens=False)
        rest = rest[size:]
    return ids


def training_example(tokenizer: PreTrainedTokenizerFast, chance: random.Random) -> tuple[list[int], list[int]]:
    """Return the ids of an episode and its labels: -100 where the model does not generate."""
    ids: list[int] = []
    labels: list[int] = []
    end, newline = tokenizer.encode("<|im_end|>"), tokenizer.encode("\n")
    for role, text in conversation(chance):
        head = tokenizer.encode(f"<|im_start|>{role}\n", add_special_tokens=False)
        is_model = role == "assistant"
        body = split_at_random(tokenizer, text, chance) if is_model else tokenizer.encode(text)
        ids += [*head, *body, *end, *newline]
        labels += [*[-100] * len(head), *(body + end if is_model else [-100] * (len(body) + 1)), -100]
    return ids, labels


def make(folder: Path, steps: int = 160) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # several threads are ten times slower for so small a model on a busy machine
    tokenizer = trained_tokenizer(folder)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps, pct_start=0.1)
    chance = random.Random(1)
    for _ in range(steps):
        examples = [training_example(tokenizer, chance) for _ in range(8)]
        longest = max(len(ids) for ids, _ in examples)
        ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in examples])
        labels = torch.tensor([labels + [-100] * (longest - len(labels)) for _, labels in examples])
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.save_pretrained(folder)
    print(json.dumps({"parameters": sum(p.numel() for p in model.parameters()), "loss": round(loss.item(), 3)}))


def change(folder: Path) -> None:
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(0.8)
    model.save_pretrained(folder)


def score(folder: Path) -> None:
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    answers = []
    with torch.inference_mode():
        for sequence in json.load(sys.stdin):
            ids, start = torch.tensor(sequence["ids"]), sequence["start"]
            log_probs = torch.log_softmax(model(ids[None]).logits[0], dim=-1)
            answers.append(log_probs[start - 1 : -1].gather(1, ids[start:, None])[:, 0].tolist())
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    {"make": make, "change": change, "score": score}[sys.argv[1]](Path(sys.argv[2]))
