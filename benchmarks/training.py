"""Speed and memory of the training stage on a randomly initialised model of a real shape.

    python benchmarks/training.py --shape qwen2.5-7b --length 16000        one H100 or A100, bf16, LoRA r=16
    python benchmarks/training.py --shape smollm2-135m --length 450 --rows 20 --no-checkpointing      a laptop's CPU
    python benchmarks/training.py --shape tiny --length 64

It runs the trainer of train.py (same rows, loss, LoRA, optimiser) on synthetic rows and prints one JSON object.
Model FLOP utilisation = model FLOPs a second / the device's peak, where model FLOPs a token =

    4 P + 6 A + L * 6 * s * h        P: weights of the linear layers, frozen: 2 forward, 2 back to the inputs
                                     A: weights of the adapter: 2 more for their own gradient
                                     attention: 2 s h forward for a causal row of s tokens, h = heads * head size,
                                     twice that backward; L layers
    + the head, 4 d V, for learnt tokens alone

Work done again by gradient checkpointing counts for nothing, as is usual for MFU (with it the hardware does about
half as much more). Peaks are the vendors' dense bf16 figures; on a CPU no utilisation is given.

`computed_gib` is what `ratchet plan` computes for this step (rounds/plan/memory.py), beside what was there: on a GPU
torch's peak, on a CPU how much the process grew while it built the model and trained (set MALLOC_MMAP_THRESHOLD_ and
MALLOC_TRIM_THRESHOLD_ to 65536 for it, or glibc keeps what was freed: 1.67 GiB instead of 0.78). With smollm2-135m 0.78
was there and 0.72 computed for --length 1024, 1.25 and 1.20 with --learnt 1, 1.23 and 1.22 for 512 --no-checkpointing.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config

from inference.footprint import footprint
from ratchet.config import LoraConfig, ModelConfig, TrainingConfig
from ratchet.files import read_log
from ratchet.records import TokenRow
from rounds.plan.memory import Step
from training.callback import TrainingCallback
from training.lora import add_lora, compute_type
from training.rows import rows_table
from training.trainer import RowTrainer, silence_libraries, trainer_config

SHAPES: dict[str, Any] = {
    "qwen2.5-7b": lambda: Qwen2Config(
        hidden_size=3584,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        intermediate_size=18944,
        vocab_size=152064,
        max_position_embeddings=32768,
        rope_theta=1e6,
        tie_word_embeddings=False,
    ),
    "smollm2-135m": lambda: LlamaConfig(
        hidden_size=576,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        vocab_size=49152,
        max_position_embeddings=8192,
        rope_theta=1e5,
        tie_word_embeddings=True,
    ),
    "tiny": lambda: LlamaConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        vocab_size=512,
    ),
}
PEAK_TFLOPS = {"H100": 989.0, "H200": 989.0, "A100": 312.0, "L40S": 362.0}


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed and memory of the training stage.")
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--length", type=int, default=16_000, help="tokens of the longest row")
    parser.add_argument("--spread", type=float, default=0.0, help="rows are this share shorter at most")
    parser.add_argument("--learnt", type=float, default=0.15, help="share of tokens with loss")
    parser.add_argument("--rows", type=int, default=4, help="rows a step")
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4, help="steps; the first warms up and is not counted")
    parser.add_argument("--no-checkpointing", dest="checkpointing", action="store_false")
    arguments = parser.parse_args()
    print(json.dumps(benchmark(arguments), indent=2))


def benchmark(arguments: argparse.Namespace) -> dict[str, Any]:
    silence_libraries()
    shape = SHAPES[arguments.shape]()
    model = ModelConfig(path=arguments.shape)
    dtype = compute_type(model)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    before = resident()
    with torch.device(device):
        base = AutoModelForCausalLM.from_config(shape, dtype=dtype, trust_remote_code=False)
    training = TrainingConfig(
        lora=LoraConfig(),
        batch_size=arguments.rows,
        micro_batch=arguments.micro_batch,
        max_steps=arguments.steps,
        warmup_steps=1,
        gradient_checkpointing=arguments.checkpointing,
        eval_steps=arguments.steps + 1,
    )
    rows = make_rows(arguments, shape.vocab_size)
    learner = add_lora(base, training.lora, seed=0)
    with tempfile.TemporaryDirectory() as name:
        watch = TrainingCallback(Path(name), training.eval_steps, has_dev=False)
        settings = trainer_config(training, model, Path(name), len(rows), seed=0, processes=1)
        table = rows_table(rows)
        trainer = RowTrainer(learner, any_tokenizer(), settings, table, table.slice(0, 0), watch, resumed=False)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        began = time.monotonic()
        trainer.train()
        spent = time.monotonic() - began
        watch.close()
        log = read_log(watch.log)[1:]
    tokens = sum(line["tokens"] for line in log)
    speed = tokens / sum(line["tokens"] / line["tokens_per_second"] for line in log)
    flops = flops_per_token(learner, shape, rows)
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    peak = next((value for key, value in PEAK_TFLOPS.items() if key in name), None)
    return {
        "command": shlex.join(["python", *sys.argv]),
        "device": name,
        "dtype": str(dtype),
        "row_tokens": [min(len(r.ids) for r in rows), max(len(r.ids) for r in rows)],
        "tokens_per_second": round(speed, 1),
        "model_tflops_per_second": float(f"{speed * flops / 1e12:.3g}"),
        "mfu": round(speed * flops / 1e12 / peak, 3) if peak else None,
        "peak_gib": round((torch.cuda.max_memory_allocated() if device == "cuda" else resident() - before) / 2**30, 2),
        "computed_gib": round(computed(arguments, shape, dtype, rows) / 2**30, 2),
        "seconds": round(spent, 1),
    }


def resident() -> int:
    """The most bytes of main memory that this process had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def computed(arguments: argparse.Namespace, shape: Any, dtype: torch.dtype, rows: list[TokenRow]) -> int:
    with tempfile.TemporaryDirectory() as name:
        shape.save_pretrained(name)
        size = footprint(name, None, str(dtype).removeprefix("torch."))
    learnt = max(sum(row.loss_mask) for row in rows) * arguments.micro_batch
    step = Step(
        shape.get_text_config(),
        size,
        dtype.itemsize,
        LoraConfig().r,
        arguments.checkpointing,
        tiled_head=torch.cuda.is_available(),
    )
    return step.memory(arguments.length * arguments.micro_batch, learnt).total


def make_rows(arguments: argparse.Namespace, vocabulary: int) -> list[TokenRow]:
    """Random ids; the learnt tokens are the row's last."""
    draw = random.Random(0)
    rows = []
    for number in range(arguments.rows):
        length = arguments.length - draw.randint(0, int(arguments.spread * arguments.length))
        learnt = max(1, int(arguments.learnt * length))
        ids = tuple(draw.randrange(vocabulary) for _ in range(length))
        mask = (0,) * (length - learnt) + (1,) * learnt
        rows.append(TokenRow(trajectory=str(number), conversation=0, role="agent", ids=ids, loss_mask=mask))
    return rows


def flops_per_token(learner: Any, shape: Any, rows: list[TokenRow]) -> float:
    """Model FLOPs a token of training, forward and backward; the formula is at the top of this file."""
    adapter = sum(p.numel() for p in learner.parameters() if p.requires_grad)
    head = learner.get_output_embeddings().weight.numel()
    linear = sum(p.numel() for n, p in learner.named_parameters() if "base_layer.weight" in n)
    tokens = sum(len(row.ids) for row in rows)
    attention = shape.num_hidden_layers * 6 * shape.hidden_size * sum(len(row.ids) ** 2 for row in rows) / tokens
    learnt = sum(sum(row.loss_mask) for row in rows) / tokens
    return float(4 * linear + 6 * adapter + attention + 4 * head * learnt)


def any_tokenizer() -> PreTrainedTokenizerFast:
    """TRL wants one; nothing is tokenised."""
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"x": 0}, unk_token="x")), eos_token="x")


if __name__ == "__main__":
    main()
