"""Tiny chat tokenizers in three styles, built on the fly: what tests use where a real model's tokenizer is not needed.

`from tiny import tiny_tokenizer, tiny_format, save_tiny_tokenizer` works in any test. The vocabulary is a byte-level
BPE learnt from a few lines of our own, so every text can be encoded; the templates are minimal ones of our own in
the manner of ChatML (SmolLM2, Qwen2.5), Llama 3 and Falcon 3.
"""

from functools import cache
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ratchet.inference.chat_formats import WrapperFormat

Style = Literal["chatml", "llama3", "falcon3"]
STYLES: tuple[Style, ...] = ("chatml", "llama3", "falcon3")

TEXT = [
    "The harbour of Velm was built by the engineer Ada Torrin in the year 1204.",
    "Which agent should act next? The searcher finds documents, the answerer writes the response.",
    '{"agent": "searcher", "input": {"question": "Who?", "information": ""}, "reason": "to find it"}',
    '{"search_query": "harbour", "relevance": [true, false], "end_search": true, "response": "Ada Torrin"}',
    "Question: Where is the harbour? Documents: none. Answer with one JSON object.",
]

TOKENS: dict[Style, dict[str, str]] = {
    "chatml": {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "pad_token": "<|im_end|>"},
    "llama3": {"eos_token": "<|eot_id|>", "bos_token": "<|begin_of_text|>", "pad_token": "<|pad|>"},
    "falcon3": {"eos_token": "<|endoftext|>", "pad_token": "<|pad|>"},
}
MORE_TOKENS: dict[Style, list[str]] = {
    "chatml": ["<|endoftext|>"],
    "llama3": ["<|start_header_id|>", "<|end_header_id|>", "<|end_of_text|>"],
    "falcon3": ["<|system|>", "<|user|>", "<|assistant|>"],
}
TEMPLATES: dict[Style, str] = {
    "chatml": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "llama3": (
        "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
        "{{ m.content }}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
    "falcon3": (
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}"
        "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}"
        "{% if not (loop.last and m.role == 'assistant') %}{{ '\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    ),
}


def tiny_tokenizer(style: Style = "chatml", chat_template: bool = True) -> PreTrainedTokenizerFast:
    """A fresh tokenizer of about 500 tokens; without `chat_template` it is what a base model would come with."""
    specials = list(dict.fromkeys([*TOKENS[style].values(), *MORE_TOKENS[style]]))
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(TEXT, trainer)
    more: Any = {"additional_special_tokens": MORE_TOKENS[style]}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, clean_up_tokenization_spaces=False, **TOKENS[style], **more
    )
    if chat_template:
        tokenizer.chat_template = TEMPLATES[style]
    return tokenizer


@cache
def tiny_format(style: Style = "chatml") -> WrapperFormat:
    """The chat format of the tiny tokenizer (shared: nothing in it changes)."""
    return WrapperFormat.from_tokenizer(tiny_tokenizer(style), f"the tiny {style} tokenizer")


def save_tiny_tokenizer(folder: Path, style: Style = "chatml") -> Path:
    """A folder that `load_tokenizer` reads, for configs with the scripted engine."""
    tiny_tokenizer(style).save_pretrained(str(folder))
    return folder
