"""GGUF files, read back by transformers and by llama.cpp, say what the model folder says."""

from __future__ import annotations

import json
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from commands.export import main
from export.gguf_file import GgufType, check_architecture, write_gguf
from export.gguf_vocabulary import split_name
from ratchet.errors import UserError
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


@pytest.mark.parametrize("make", [tiny_model, tiny_qwen2])
def test_transformers_reads_the_same_model_back(make: Any, tmp_path: Path) -> None:
    source = make(tmp_path / "source")
    tokenizer = AutoTokenizer.from_pretrained(source)
    ids = tokenizer(TEXTS[0], return_tensors="pt").input_ids
    model = AutoModelForCausalLM.from_pretrained(source).eval()
    tolerances: dict[GgufType, float] = {"f16": 2e-3, "q8_0": 5e-2}
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


def test_a_write_that_is_killed_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    source, target = tiny_model(tmp_path / "source"), tmp_path / "x.gguf"
    with monkeypatch.context() as patch:
        patch.setattr("export.gguf_file._convert", killed)
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
    ],
)
def test_other_architectures_are_refused_in_one_line(config: Any, problem: str) -> None:
    if problem.endswith("mistral"):
        config.model_type = "mistral"
    with pytest.raises(UserError, match=problem) as refused:
        check_architecture(config, "the model")
    assert "\n" not in str(refused.value)


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


def test_a_tokenizer_of_another_kind_is_refused(tmp_path: Path) -> None:
    source = tiny_model(tmp_path / "source")
    words = Tokenizer(models.WordLevel({"a": 0, "<|im_end|>": 1}, unk_token="a"))
    words.decoder = decoders.Fuse()
    template = tiny_tokenizer().chat_template
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|im_end|>", chat_template=template).save_pretrained(
        source
    )
    with pytest.raises(UserError, match="its tokenizer is no byte-level BPE"):
        write_gguf(source, tmp_path / "x.gguf", "f16", "tiny")
    assert not (tmp_path / "x.gguf").exists()


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
    out = llm.create_chat_completion([{"role": "user", "content": prompt}], temperature=0.0, max_tokens=24)
    said.append(out["choices"][0]["message"]["content"])
print(json.dumps([ids, said]))
"""


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.skipif(not (LLAMA_CPP.exists() and SMOLLM2.exists()), reason="make model and make llama were not run")
def test_llama_cpp_splits_texts_and_answers_as_the_model_does(tmp_path: Path) -> None:
    """Greedy answers through the chat template of the file, which llama-cpp-python renders by itself."""
    write_gguf(SMOLLM2, tmp_path / "model.gguf", "f16", "SmolLM2")
    prompts = ["What is the capital of France?", "Name three colours.", "What is 12 plus 7?"]
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
        reply = model.generate(**given, max_new_tokens=24, do_sample=False)[0, given["input_ids"].shape[1] :]
        assert answer == tokenizer.decode(reply, skip_special_tokens=True)
