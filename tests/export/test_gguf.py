"""GGUF files, read back by transformers and by llama.cpp, say what the model folder says."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFReader
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DeepseekV3Config,
    Gemma3TextConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from ratchet.commands.export import main
from ratchet.core.config import ModelConfig
from ratchet.core.errors import UserError
from ratchet.export.gguf_file import GgufType, check_architecture, check_base, write_gguf
from ratchet.export.gguf_vocabulary import split_name
from tests.helpers.pages import ROOT
from tests.helpers.tiny import tiny_tokenizer
from tests.helpers.world import tiny_model

LLAMA_CPP = ROOT / ".venv-llama" / "bin" / "python"
SMOLLM2 = ROOT / "models" / "smollm2-135m-instruct"
SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
}
TEXTS = [
    "Who built the harbour of Velm in 1204?",
    "  two  blanks,\n\nlines\tand 12345 digits",
    "naïve façade — 東京 🙂 it's",
]


def tiny_qwen2(folder: Path) -> Path:
    """A model of Qwen2's architecture, with biases that are not zero, and its tokenizer's way to split a text."""
    tokenizer = tiny_tokenizer()
    parts = [
        pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated"),
        pre_tokenizers.ByteLevel(False, use_regex=False),
    ]
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    torch.manual_seed(2)
    config = Qwen2Config(**SHAPE, vocab_size=len(tokenizer) + 12, tie_word_embeddings=False, eos_token_id=0)
    model = AutoModelForCausalLM.from_config(config)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_qwen3(folder: Path) -> Path:
    """A model of Qwen3's architecture with a head size of its own, and the tokenizer of `tiny_qwen2`."""
    AutoTokenizer.from_pretrained(tiny_qwen2(folder)).save_pretrained(folder)
    torch.manual_seed(3)
    config = Qwen3Config(**SHAPE, head_dim=128, vocab_size=600, tie_word_embeddings=True, eos_token_id=0)
    return save_with_norms(config, folder)


def tiny_gemma3(folder: Path, **changes: Any) -> Path:
    """A model of Gemma 3's architecture with one layer that has no window, and a vocabulary of SentencePiece's kind."""
    sentencepiece().save_pretrained(folder)
    torch.manual_seed(4)
    sizes = {**SHAPE, "num_hidden_layers": 7, "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4}
    del sizes["rope_parameters"]
    return save_with_norms(Gemma3TextConfig(**sizes, vocab_size=400, eos_token_id=1, **changes), folder)


def save_with_norms(config: Any, folder: Path) -> Path:
    model = AutoModelForCausalLM.from_config(config)
    for name, weight in model.named_parameters():
        if name.endswith("norm.weight"):
            torch.nn.init.normal_(weight, mean=0.5, std=0.2)
        weight.data = weight.data.half().float()  # so that f16 rounds nothing
    model.save_pretrained(folder)
    return folder


def sentencepiece(without: tuple[str, str] | None = None) -> PreTrainedTokenizerFast:
    """As transformers has Gemma's: all cuts of a token are merges, in the order of the tokens, and bytes are tokens."""
    words = ["▁t", "he", "▁the", "ho", "▁who", "lt", "▁built", "▁b", "ui", "uilt", "▁w", "▁h", "▁▁", "2", "12"]
    letters = sorted({letter for word in words for letter in word})
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<end_of_turn>", "<start_of_turn>"]
    names = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *(w for w in words if len(w) > 1)]
    vocabulary = {name: number for number, name in enumerate(names)}
    merges = [
        (word[:at], word[at:])
        for word in names[262:]
        for at in range(1, len(word))
        if word[:at] in vocabulary and word[at:] in vocabulary and (word[:at], word[at:]) != without
    ]
    bpe = models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    backend = Tokenizer(bpe)
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 2)])
    turns = ["<start_of_turn>", "<end_of_turn>"]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>",
        additional_special_tokens=turns,
    )  # fmt: skip
    tokenizer.add_tokens(["\n\n"])
    tokenizer.chat_template = (
        "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>assistant\n{% endif %}"
    )
    return tokenizer


@pytest.mark.parametrize(
    ("make", "rounded"), [(tiny_model, 5e-2), (tiny_qwen2, 5e-2), (tiny_qwen3, 5e-2), (tiny_gemma3, 0.2)]
)
def test_transformers_reads_the_same_model_back(make: Any, rounded: float, tmp_path: Path) -> None:
    source = make(tmp_path / "source")
    tokenizer = AutoTokenizer.from_pretrained(source)
    ids = tokenizer(TEXTS[0], return_tensors="pt").input_ids
    model = AutoModelForCausalLM.from_pretrained(source).eval()
    tolerances: dict[GgufType, float] = {"f16": 2e-3, "q8_0": rounded}
    for kind, tolerance in tolerances.items():
        assert write_gguf(source, tmp_path / f"{kind}.gguf", kind, "tiny")
        assert not write_gguf(source, tmp_path / f"{kind}.gguf", kind, "tiny"), "it is complete"
        again = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=f"{kind}.gguf").eval()
        with torch.no_grad():
            torch.testing.assert_close(again(ids).logits, model(ids).logits, atol=tolerance, rtol=tolerance)
    assert again.config.model_type == model.config.model_type
    read = AutoTokenizer.from_pretrained(tmp_path, gguf_file="f16.gguf")
    assert read.chat_template == tokenizer.chat_template
    assert read.eos_token_id == tokenizer.eos_token_id
    vocabulary = tokenizer.get_vocab()
    assert {token: number for token, number in read.get_vocab().items() if number < len(tokenizer)} == vocabulary
    assert not list(tmp_path.glob(".*.tmp"))


def by_scores(tokens: list[str], scores: list[float], text: str) -> list[int]:
    """What llama.cpp makes of a SentencePiece vocabulary: the neighbours whose token has the highest score are joined
    first, the leftmost of equal ones, and a letter without a token becomes its bytes."""
    known = {token: number for number, token in enumerate(tokens)}
    parts = list(text.replace(" ", "▁"))
    while True:
        joined = [(scores[known[a + b]], -at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in known]
        if not joined:
            break
        at = -max(joined)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    split = [[known[p]] if p in known else [known[f"<0x{byte:02X}>"] for byte in p.encode()] for p in parts]
    return [number for numbers in split for number in numbers]


def test_gemmas_vocabulary_has_what_llama_cpp_reads(tmp_path: Path) -> None:
    source = tiny_gemma3(tmp_path / "source")
    tokenizer = AutoTokenizer.from_pretrained(source)
    write_gguf(source, tmp_path / "x.gguf", "f16", "tiny")
    fields = {name: field.contents() for name, field in GGUFReader(tmp_path / "x.gguf").fields.items()}
    tokens, scores = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.scores"]
    for text in ["who built the", " the  12 oh built", "naïve 東京🙂"]:
        assert by_scores(tokens, scores, text) == tokenizer.encode(text, add_special_tokens=False)
    kinds = dict(zip(tokens, fields["tokenizer.ggml.token_type"], strict=True))
    assert [kinds[one] for one in ("▁the", "<bos>", "<end_of_turn>", "\n\n", "<0x0A>")] == [1, 3, 3, 4, 6]
    settings = {"model": "llama", "pre": "default", "add_bos_token": True, "add_space_prefix": False}
    settings |= {"bos_token_id": 2, "eos_token_id": 1, "unknown_token_id": 3, "eot_token_id": 4}
    assert {name: fields[f"tokenizer.ggml.{name}"] for name in settings} == settings
    assert fields["gemma3.attention.sliding_window"] == 4 and fields["gemma3.rope.freq_base"] == 1e6


def test_of_a_multimodal_gemma_the_language_model_is_written(tmp_path: Path) -> None:
    alone = tiny_gemma3(tmp_path / "alone")
    write_gguf(alone, tmp_path / "alone.gguf", "f16", "tiny")
    whole = Path(shutil.copytree(alone, tmp_path / "whole"))
    text = json.loads((alone / "config.json").read_text())
    (whole / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    tensors = {f"language_model.{name}": one for name, one in load_file(whole / "model.safetensors").items()}
    tensors["vision_tower.embeddings.weight"] = torch.zeros(3, 3)
    save_file(tensors, whole / "model.safetensors")
    write_gguf(whole, tmp_path / "whole.gguf", "f16", "tiny")
    assert (tmp_path / "whole.gguf").read_bytes() == (tmp_path / "alone.gguf").read_bytes()


def test_a_write_that_is_killed_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    source, target = tiny_model(tmp_path / "source"), tmp_path / "x.gguf"
    with monkeypatch.context() as patch:
        patch.setattr("ratchet.export.gguf_file._convert", killed)
        with pytest.raises(KeyboardInterrupt):
            write_gguf(source, target, "f16", "tiny")
    assert not target.exists()
    assert write_gguf(source, target, "f16", "tiny") and not list(tmp_path.glob(".*.tmp"))


def test_a_disk_that_is_full_at_the_last_tensor_leaves_no_file(tmp_path: Path) -> None:
    """The limit on a file's size stands in for the disk's end."""
    source, target = tiny_model(tmp_path / "source"), tmp_path / "x.gguf"
    write_gguf(source, tmp_path / "whole.gguf", "q8_0", "tiny")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "whole.gguf").stat().st_size - 500, limits[1]))
    try:
        with pytest.raises(UserError, match=r"x\.gguf"):
            write_gguf(source, target, "q8_0", "tiny")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not target.exists()
    assert write_gguf(source, target, "q8_0", "tiny")
    assert target.read_bytes() == (tmp_path / "whole.gguf").read_bytes()


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (LlamaConfig(model_type="mistral"), "architecture is mistral"),
        (LlamaConfig(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}), "scaled .linear"),
        (LlamaConfig(attention_bias=True), "attention has biases"),
        (Qwen2Config(use_sliding_window=True), "sliding window"),
        (LlamaConfig(hidden_act="gelu"), "activation is gelu"),
        (Qwen3Config(attention_bias=True), "attention has biases"),
        (Gemma3TextConfig(query_pre_attn_scalar=168), "not those of Gemma 3"),
        (Gemma3TextConfig(sliding_window_pattern=2), "not those of Gemma 3"),
        (DeepseekV3Config(), "architecture is deepseek_v3"),
    ],
)
def test_other_architectures_are_refused_in_one_line(config: Any, problem: str) -> None:
    if problem.endswith("mistral"):
        config.model_type = "mistral"
    with pytest.raises(UserError, match=problem) as refused:
        check_architecture(config, "the model")
    assert "\n" not in str(refused.value) and "convert_hf_to_gguf.py" in str(refused.value)


def test_a_split_is_named_only_where_it_is_known() -> None:
    def name(*steps: Any) -> str:
        part = pre_tokenizers.Sequence(list(steps)) if len(steps) > 1 else steps[0]
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = part
        return split_name(json.loads(tokenizer.to_str())["pre_tokenizer"], "the model")

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    assert name(byte_level) == "gpt-2"
    assert name(pre_tokenizers.Digits(individual_digits=True), byte_level) == "smollm"
    assert name(pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated"), plain) == "qwen2"
    for steps in (
        (pre_tokenizers.Whitespace(),),
        (pre_tokenizers.Digits(individual_digits=False), byte_level),
        (pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "removed"), plain),
        (pre_tokenizers.ByteLevel(add_prefix_space=True),),
    ):
        with pytest.raises(UserError, match=r"not known to be one of llama\.cpp's"):
            name(*steps)


def test_a_tokenizer_of_another_kind_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    source = tiny_model(tmp_path / "source")
    words = Tokenizer(models.WordLevel({"a": 0, "<|im_end|>": 1}, unk_token="a"))
    words.decoder = decoders.Fuse()
    template = tiny_tokenizer().chat_template
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|im_end|>", chat_template=template).save_pretrained(
        source
    )
    (source / "model.safetensors").unlink()
    base = ModelConfig(path=str(source))
    with pytest.raises(UserError, match=r"its tokenizer is no BPE.*convert_hf_to_gguf\.py"):
        check_base(base)
    sentencepiece(without=("▁t", "he")).save_pretrained(source)
    with pytest.raises(UserError, match="no SentencePiece vocabulary's: of '▁the'"):
        check_base(base)


@pytest.mark.slow
def test_the_command_writes_files_modelfile_and_card(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--config", str(trained), "--out", str(tmp_path), "--gguf", "--ollama"]
    main(words)
    names = {path.name for path in (tmp_path / "gguf").iterdir()}
    assert names == {"README.md", "Modelfile", "export.json", "run-round-1-f16.gguf", "run-round-1-q8_0.gguf"}
    assert "FROM ./run-round-1-q8_0.gguf\n" in (tmp_path / "gguf/Modelfile").read_text()
    assert "base_model_relation: quantized" in (tmp_path / "gguf/README.md").read_text()
    times = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "gguf").iterdir() if path.suffix == ".gguf"}
    (tmp_path / "gguf/run-round-1-f16.gguf").unlink()
    main(words)
    assert (tmp_path / "gguf/run-round-1-f16.gguf").exists(), "what is missing is written"
    assert (tmp_path / "gguf/run-round-1-q8_0.gguf").stat().st_mtime_ns == times["run-round-1-q8_0.gguf"]


ASK = """
import json, sys
from llama_cpp import Llama
path, texts, prompts = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
llm = Llama(path, n_ctx=512, verbose=False, n_threads=2)
ids = [llm.tokenize(text.encode(), add_bos=False, special=True) for text in texts]
said = []
for prompt in prompts:
    out = llm.create_chat_completion([{"role": "user", "content": prompt}], temperature=0.0, max_tokens=12)
    said.append(out["choices"][0]["message"]["content"])
print(json.dumps([ids, said]))
"""


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.skipif(not (LLAMA_CPP.exists() and SMOLLM2.exists()), reason="make model and make llama were not run")
def test_llama_cpp_splits_texts_and_answers_as_the_model_does(tmp_path: Path) -> None:
    """Greedy answers through the chat template of the file, which llama-cpp-python renders by itself."""
    write_gguf(SMOLLM2, tmp_path / "model.gguf", "f16", "SmolLM2")
    prompts = ["What is the capital of France?", "Name three colours."]
    asked = [str(LLAMA_CPP), "-c", ASK, str(tmp_path / "model.gguf"), json.dumps(TEXTS), json.dumps(prompts)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ids, said = json.loads(done.stdout)
    tokenizer = AutoTokenizer.from_pretrained(SMOLLM2)
    assert ids == [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
    model = AutoModelForCausalLM.from_pretrained(SMOLLM2, dtype=torch.float32)
    for prompt, answer in zip(prompts, said, strict=True):
        message = [{"role": "user", "content": prompt}]
        given = tokenizer.apply_chat_template(
            message, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        reply = model.generate(**given, max_new_tokens=12, do_sample=False)[0, given["input_ids"].shape[1] :]
        assert answer == tokenizer.decode(reply, skip_special_tokens=True)
