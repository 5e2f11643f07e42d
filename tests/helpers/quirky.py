"""Chat formats with the quirks of well-known models, and a way to play a dialogue in them."""

from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ratchet.inference.chat import ChatFormat, Dialogue
from ratchet.inference.chat_formats import WrapperFormat
from ratchet.inference.completion import Completion, FinishReason
from tests.helpers.tiny import STYLES, tiny_format

# Templates of our own with the quirks of well-known ones.
QWEN25 = """
{%- if tools %}<|im_start|>system\nTools: {{ tools }}<|im_end|>\n{%- endif -%}
{%- if messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n
{%- else %}<|im_start|>system\nYou are a made-up assistant.<|im_end|>\n{% endif %}
{%- for m in messages %}{% if m.role == 'user' or (m.role == 'system' and not loop.first)
    or (m.role == 'assistant' and not m.tool_calls) %}
{{- '\n' if not loop.first or m.role == 'user' }}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endif %}
{%- endfor %}
{{- '\n' }}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"""
LLAMA32 = """
{{- bos_token }}{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}
{%- if messages[0].role == 'system' %}{% set system = messages[0].content | trim %}{% set messages = messages[1:] %}
{%- else %}{% set system = '' %}{% endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\nCutting date: December\nToday: ' + date_string + '\n\n' }}
{{- system }}<|eot_id|>
{%- for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""
FALCON3 = """
{%- for m in messages %}{% if m.role != 'assistant' %}{{ '<|' + m.role + '|>\n' + m.content + '\n' }}
{%- elif not loop.last %}{{ '<|assistant|>\n' + m.content + eos_token + '\n' }}
{%- else %}{{ '<|assistant|>\n' + m.content + eos_token }}{% endif %}
{%- if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}"""


def quirky_tokenizer(template: str, controls: list[str], **special: str) -> PreTrainedTokenizerFast:
    """Splits text as Llama 3 does ('?' and the line break behind it are one token), NFKC-normalises, and has added
    tokens that are not special, as Qwen2.5 has for tools; some of them overlap."""
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFKC()
    words = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    bpe.train_from_iterator(["Where is it?\nHere.\nOh!\nWhere? There.\n\n{}\n Is it?\n"] * 9, trainer)
    bpe.add_special_tokens(controls)
    more = ["<tool_call>", "</tool_call>", "<a", "a>", "<think>", "  ", "~"]
    bpe.add_tokens([AddedToken(token, normalized=token == "<think>") for token in more])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, **special)
    tokenizer.chat_template = template
    return tokenizer


CHATML = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
HEADERS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
ROLES = ["<|system|>", "<|user|>", "<|assistant|>", "<|endoftext|>"]
QUIRKY = {
    "qwen2.5": quirky_tokenizer(QWEN25, CHATML, eos_token="<|im_end|>"),
    "llama3.2": quirky_tokenizer(LLAMA32, HEADERS, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>"),
    "falcon3": quirky_tokenizer(FALCON3, ROLES, eos_token="<|endoftext|>"),
}
FORMATS = {f"tiny {style}": tiny_format(style) for style in STYLES}
FORMATS |= {name: WrapperFormat.from_tokenizer(tokenizer, name) for name, tokenizer in QUIRKY.items()}
each_format = pytest.mark.parametrize("chat", FORMATS.values(), ids=FORMATS.keys())


def completion(chat: ChatFormat, text: str, finish: FinishReason = "stop") -> Completion:
    ids = (*chat.encode(text), chat.end_of_turn) if finish == "stop" else chat.encode(text)
    return Completion(ids=ids, text=text, finish_reason=finish, prompt_tokens=1)


def play(chat: ChatFormat, system: str | None, texts: list[str]) -> Dialogue:
    """user, assistant, user... ending with the user."""
    dialogue = Dialogue("r", "m", chat, True, system)
    for i, text in enumerate(texts):
        if i % 2 == 0:
            dialogue.user(text)
        else:
            dialogue.assistant(completion(chat, text), parsed=True)
    return dialogue


def controls_of(chat: ChatFormat, ids: Any) -> list[int]:
    return [i for i in ids if i in chat.control_ids]
