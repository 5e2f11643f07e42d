"""Speed and memory of the training stage on a randomly initialised model of a real shape.

    python benchmarks/training.py --shape qwen2.5-7b --length 16000        one H100 or A100, bf16, LoRA r=16
    python benchmarks/training.py --shape smollm2-135m --length 450 --rows 20 --checkpointing never      a laptop's CPU
    python benchmarks/training.py --shape tiny --length 64
    python benchmarks/training.py --shape smollm2-135m --length 240 --rows 8 --micro-batch 8 --checkpointing never \\
        --prefix 100 --padding-free      rows of one role, whose instructions are computed once

It runs the trainer of train.py (same rows, loss, LoRA, optimiser) on synthetic rows and prints one JSON object; with
--trl it is TRL's own trainer with PEFT on the same rows, model and adapter, as its documentation uses it; under
`accelerate launch` with a file of configs/accelerate the main process prints it. `losses` are those of every step: the
same arguments give the same rows on every device and, below a billion parameters, the same model.

`computed_gib` is weights, adapter and the activations of the largest micro-batch by training/memory.py, beside what was
there: on a GPU torch's peak, on a CPU how much the process grew while it built the model and trained (set
MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ to 65536 for it, or glibc keeps what was freed).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch
from accelerate import PartialState
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer

from ratchet.core.config import LoraConfig, ModelConfig, TrainingConfig
from ratchet.core.files import read_log
from ratchet.inference.footprint import PUBLISHED
from ratchet.training.batches import as_tree
from ratchet.training.callback import TrainingCallback
from ratchet.training.lora import add_lora, compute_type, has_fused_layers, on_cpu
from ratchet.training.memory import OPTIMIZER_BYTES, Activations
from ratchet.training.rows import TokenRow, rows_table
from ratchet.training.trainer import RowTrainer, silence_libraries, trainer_config

SHAPES: dict[str, Any] = {
    "qwen2.5-7b": lambda: AutoConfig.for_model(**PUBLISHED["Qwen/Qwen2.5-7B"]),
    "smollm2-135m": lambda: AutoConfig.for_model(
        **PUBLISHED["HuggingFaceTB/SmolLM2-135M"], max_position_embeddings=8192
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
DRAWN_ON_CPU = 1e9
"""Models with fewer parameters are drawn on the CPU, so that they are the same on every device."""


LEARNT = 0.15
"""The share of tokens with loss."""


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments of a measurement; by default those of the command line."""
    parser = argparse.ArgumentParser(description="Speed and memory of the training stage.")
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--length", type=int, default=16_000, help="tokens of the longest row")
    parser.add_argument("--spread", type=float, default=0.0, help="rows are this share shorter at most")
    parser.add_argument("--mean", type=int, help="instead, lengths with this mean, log-normal, --length at most")
    parser.add_argument("--rows", type=int, default=4, help="rows a step")
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4, help="steps; the first warms up and is not counted")
    parser.add_argument("--checkpointing", choices=["always", "never"], default="always")
    parser.add_argument("--padding-free", action="store_true")
    parser.add_argument("--prefix", type=int, default=0, help="tokens with which all rows begin alike")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--device", choices=["auto", "cpu"], default="auto")
    parser.add_argument("--trl", action="store_true", help="TRL's own SFTTrainer in place of ours")
    return parser.parse_args(words)


def main() -> None:
    found = benchmark(parse())
    if PartialState().is_main_process:
        print(json.dumps(found, indent=2))


def benchmark(arguments: argparse.Namespace) -> dict[str, Any]:
    silence_libraries()
    shape = SHAPES[arguments.shape]()
    model = ModelConfig(path=arguments.shape, dtype=arguments.dtype, device=arguments.device)
    state = PartialState(cpu=on_cpu(model))
    is_cuda = state.device.type == "cuda"
    dtype = compute_type(model)
    before = resident()
    base = random_model(shape, dtype, state.device)
    training = TrainingConfig(
        lora=LoraConfig(),
        batch_size=arguments.rows,
        micro_batch=arguments.micro_batch,
        max_steps=arguments.steps,
        warmup_steps=1,
        gradient_checkpointing=arguments.checkpointing == "always",
        padding_free=arguments.padding_free,
        eval_steps=arguments.steps + 1,
    )
    rows = make_rows(arguments, shape.vocab_size)
    learner = add_lora(base, training.lora, seed=0)
    table = rows_table(rows)
    # Every process has a folder; the main one's has the log.
    with tempfile.TemporaryDirectory() as name:
        watch = TrainingCallback(Path(name), training.eval_steps, has_dev=False)
        settings = trainer_config(training, model, Path(name), len(rows), seed=0, processes=state.num_processes)
        if arguments.trl:
            return with_trl(learner, settings, rows)
        trainer = RowTrainer(learner, any_tokenizer(), settings, table, table.slice(0, 0), watch, False, training)
        trainer.add_callback(clock := Clock())
        if is_cuda:
            torch.cuda.reset_peak_memory_stats()
        began = time.monotonic()
        trainer.train()
        spent = time.monotonic() - began
        watch.close()
        log = read_log(watch.log) if state.is_main_process else []
    if not log:
        return {}
    counted = log[1:]
    tokens = sum(line["tokens"] for line in counted)
    speed = tokens / sum(line["tokens"] / line["tokens_per_second"] for line in counted)
    return {
        "command": shlex.join(["python", *sys.argv]),
        "device": torch.cuda.get_device_name() if is_cuda else "cpu",
        "processes": state.num_processes,
        "dtype": str(dtype),
        "row_tokens": [min(len(r.ids) for r in rows), max(len(r.ids) for r in rows)],
        "losses": [line["loss"] for line in log],
        "tokens_per_second": round(speed, 1),
        "tokens_per_cpu_second": clock.rates(sum(len(row.ids) for row in rows))[1],
        "peak_gib": round((torch.cuda.max_memory_allocated() if is_cuda else resident() - before) / 2**30, 2),
        "computed_gib": round(computed(trainer, arguments, dtype, rows) / 2**30, 2),
        "seconds": round(spent, 1),
    }


class Clock(TrainerCallback):
    """The time and the CPU time at the end of each step."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []

    def on_step_end(self, *given: Any, **others: Any) -> None:
        self.times.append((time.monotonic(), time.process_time()))

    def rates(self, tokens: int) -> tuple[float, float]:
        """Tokens a second and a CPU second of steps of so many tokens, the first of them aside."""
        (began, began_cpu), (ended, ended_cpu) = self.times[0], self.times[-1]
        tokens *= len(self.times) - 1
        return round(tokens / (ended - began), 1), round(tokens / (ended_cpu - began_cpu), 1)


def with_trl(learner: Any, settings: SFTConfig, rows: Sequence[TokenRow]) -> dict[str, Any]:
    """The same of TRL's own trainer, without memory."""
    labels = [[i if learnt else -100 for i, learnt in zip(row.ids, row.loss_mask, strict=True)] for row in rows]
    data, clock = Dataset.from_dict({"input_ids": [list(row.ids) for row in rows], "labels": labels}), Clock()
    trainer = SFTTrainer(learner, settings, train_dataset=data, processing_class=any_tokenizer(), callbacks=[clock])
    trainer.train()
    speed, of_cpu = clock.rates(sum(len(row.ids) for row in rows))
    return {
        "command": shlex.join(["python", *sys.argv]),
        "losses": [line["loss"] for line in trainer.state.log_history if "loss" in line],
        "tokens_per_second": speed,
        "tokens_per_cpu_second": of_cpu,
    }


def random_model(shape: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """A model with drawn weights."""
    torch.manual_seed(0)
    with torch.device("meta"):
        parameters = sum(
            weight.numel() for weight in AutoModelForCausalLM.from_config(shape, trust_remote_code=False).parameters()
        )
    if parameters < DRAWN_ON_CPU:
        return AutoModelForCausalLM.from_config(shape, dtype=torch.float32, trust_remote_code=False).to(device, dtype)
    with device:
        return AutoModelForCausalLM.from_config(shape, dtype=dtype, trust_remote_code=False)


def resident() -> int:
    """The most bytes of main memory that this process had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def computed(trainer: RowTrainer, arguments: argparse.Namespace, dtype: torch.dtype, rows: list[TokenRow]) -> float:
    """Bytes at the peak, of a model that is not sharded."""
    model, size = trainer.accelerator.unwrap_model(trainer.model), arguments.micro_batch
    frozen = sum(weight.numel() * weight.element_size() for weight in model.parameters() if not weight.requires_grad)
    adapter = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    shape = model.get_base_model().config.get_text_config()
    on_gpu = trainer.args.device.type == "cuda"
    activations = Activations.of(shape, LoraConfig().r, dtype, on_gpu, fused=on_gpu and has_fused_layers())
    assert activations is not None
    order = trainer.row_order(0)
    peaks = []
    for at in range(0, len(order), size):
        some = [rows[number] for number in order[at : at + size]]
        lengths, learnt = [len(row.ids) for row in some], sum(sum(row.loss_mask) for row in some)
        tokens = sum(lengths) if arguments.padding_free else max(lengths) * len(some)
        if arguments.padding_free and trainer.args.use_cpu:
            tokens = as_tree([row.model_dump() for row in some])["input_ids"].numel()
        peaks.append(activations.total(tokens, learnt, checkpointing=arguments.checkpointing == "always"))
    return frozen + adapter * (4 + OPTIMIZER_BYTES) + max(peaks)


def make_rows(arguments: argparse.Namespace, vocabulary: int) -> list[TokenRow]:
    """Random ids; the learnt tokens are the row's last."""
    draw = random.Random(0)
    prefix = [draw.randrange(vocabulary) for _ in range(arguments.prefix)]
    rows = []
    for number in range(arguments.rows):
        length = arguments.length - draw.randint(0, int(arguments.spread * arguments.length))
        if arguments.mean:
            length = min(arguments.length, max(2, int(draw.lognormvariate(math.log(arguments.mean) - 0.32, 0.8))))
        learnt = max(1, int(LEARNT * length))
        ids = (*prefix, *(draw.randrange(vocabulary) for _ in range(length)))[:length]
        mask = (0,) * (length - learnt) + (1,) * learnt
        rows.append(TokenRow(trajectory=str(number), conversation=0, role="agent", ids=ids, loss_mask=mask))
    return rows


def any_tokenizer() -> PreTrainedTokenizerFast:
    """TRL wants one; nothing is tokenised."""
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"x": 0}, unk_token="x")), eos_token="x")


if __name__ == "__main__":
    main()
