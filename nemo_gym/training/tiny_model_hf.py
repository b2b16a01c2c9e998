"""A Llama and a tokenizer of `transformers` for the task of `gym train demo`, for trainers that need these."""

import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from nemo_gym.training.tiny_model import ASK, CONTEXT_LENGTH, END, PAD, ROLES, UNKNOWN, WORDS

WIDTH = 64
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<' + ('user' if message.role not in ('assistant', 'tool') else message.role) + '> ' }}"
    "{{ (message.content or '') + ' ' }}"
    f"{{{{ '{ASK} ' if message.tool_calls else '{END} ' }}}}"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{ROLES['assistant']}{{% endif %}}"
)


def tiny_llama() -> LlamaForCausalLM:
    """Return a Llama of two layers over `WORDS`. Its attention is initialised to copy, as in `TinyTransformer`."""
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        pad_token_id=WORDS.index(PAD),
        bos_token_id=None,
        eos_token_id=WORDS.index(END),
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_(std=WIDTH**-0.5)
        model.model.norm.weight.fill_(0.5)
        for layer in model.model.layers:
            layer.self_attn.v_proj.weight.copy_(2.0 * torch.eye(WIDTH))
            layer.self_attn.o_proj.weight.copy_(torch.eye(WIDTH))
    return model


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Return the word-level tokenizer of the demo; it gives the same ids as `WordTokenizer`."""
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\w<>]+"), "removed")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=UNKNOWN, pad_token=PAD, eos_token=END)
    fast.add_special_tokens({"additional_special_tokens": list(ROLES.values())})
    fast.chat_template = CHAT_TEMPLATE
    return fast
