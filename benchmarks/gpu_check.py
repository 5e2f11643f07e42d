"""The checks of the first hour on a GPU, as a table of measured against expected: `make gpu-check`.

    python -m benchmarks.gpu_check              one NVIDIA GPU, offline, under 25 minutes; without a GPU its CPU subset
    python -m benchmarks.gpu_check --cpu        the same steps on tiny shapes, which tests run

Weights are drawn, in the shapes of real models. Exits 1 where a step falls short or fails. A step that this machine
cannot do, or a number that it cannot judge, as speed on a CPU, is shown with the reason and counts for nothing.
docs/results/engine.md has the table of an H200.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch
import yaml
from peft import LoraConfig as PeftLoraConfig
from peft import get_peft_model
from rich.table import Table
from transformers import AutoModelForCausalLM

from benchmarks.training import SHAPES, benchmark, parse, random_model
from ratchet.core.errors import UserError
from ratchet.core.tables import wide_console
from ratchet.training.memory import Activations

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "models" / "smollm2-135m-instruct"
SERVE_SECONDS, DEMO_SECONDS = 300, 540
RUN_SECONDS = 420
"""The longest that one measurement may take."""
PACKED_GAIN = 1.3
"""Rows of mixed lengths have to be as many times faster without padding."""


class StepFailed(Exception):
    """A step that did not end with a result."""


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    what: str
    measured: str
    expected: str
    passed: bool | None
    """None: shown and not judged."""


@dataclass(frozen=True)
class Sizes:
    """The sizes that the steps measure."""

    on_gpu: bool
    large: str
    """The shape whose training step is measured."""
    small: str
    """The shape that is compared between devices."""
    length: int
    """Tokens of the long rows."""
    mean: int
    """The mean tokens of rows of mixed lengths."""


GPU = Sizes(True, "qwen2.5-7b", "smollm2-135m", 16_000, 3_500)
CPU = Sizes(False, "tiny", "tiny", 96, 30)


def measure(sizes: Sizes, *words: object, launch: Sequence[str] = ()) -> dict[str, Any]:
    """Run benchmarks/training.py with these arguments. On a GPU, or behind a launcher, it is a process of its own,
    whose memory is free afterwards."""
    arguments = [str(word) for word in words]
    if not sizes.on_gpu and not launch:
        return benchmark(parse([*arguments, "--device", "cpu"]))
    device = [] if sizes.on_gpu else ["--device", "cpu"]
    command = [sys.executable, *launch, str(ROOT / "benchmarks" / "training.py"), *arguments, *device]
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": path}
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=RUN_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise StepFailed(f"no result after {RUN_SECONDS} s: {' '.join(command)}") from error
    start = done.stdout.find("{")
    if done.returncode or start < 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise StepFailed(f"exit status {done.returncode}: {last}")
    found: dict[str, Any] = json.loads(done.stdout[start:])
    return found


def losses_agree(what: str, ours: Sequence[float], theirs: Sequence[float], tolerance: float) -> Line:
    off = max(abs(one - other) / abs(other) for one, other in zip(ours, theirs, strict=True))
    return Line(what, f"{ours[0]:.5f} and {theirs[0]:.5f}, {off:.1e} off", f"{tolerance:.0e} off", off <= tolerance)


def same_loss_as_on_the_cpu(sizes: Sizes) -> Iterator[Line]:
    """The small shape in bfloat16 on the device against float32 on the CPU."""
    words = ("--shape", sizes.small, "--length", min(sizes.length, 400), "--rows", 4, "--micro-batch", 2, "--steps", 3)
    there = measure(sizes, *words, *(() if sizes.on_gpu else ("--dtype", "float32")))
    here = measure(sizes, *words, "--dtype", "float32", *(("--device", "cpu") if sizes.on_gpu else ()))
    yield losses_agree("loss of 3 steps against float32 on the CPU", there["losses"], here["losses"], 1e-2)


def longest_without_checkpointing(sizes: Sizes) -> int:
    """The longest row, up to `sizes.length`, whose activations fit the free memory with a tenth to spare."""
    if not sizes.on_gpu:
        return sizes.length
    shape = SHAPES[sizes.large]()
    activations = Activations.of(shape, 16, torch.bfloat16, tiled_head=True)
    assert activations is not None
    with torch.device("meta"):
        weights = 2 * sum(
            weight.numel() for weight in AutoModelForCausalLM.from_config(shape, trust_remote_code=False).parameters()
        )
    room = 0.85 * torch.cuda.mem_get_info()[0] - weights
    lengths = range(sizes.length, 1000, -500)
    return next((n for n in lengths if activations.total(n, n, checkpointing=False) < room), 1000)


def training_step(sizes: Sizes) -> Iterator[Line]:
    """Tokens a second and memory of the large shape, with and without gradient checkpointing."""
    for checkpointing, length in (("always", sizes.length), ("never", longest_without_checkpointing(sizes))):
        words = ("--shape", sizes.large, "--length", length, "--rows", 2, "--steps", 3)
        found = measure(sizes, *words, "--checkpointing", checkpointing)
        what = f"{sizes.large}, rows of {length} tokens, checkpointing {checkpointing}"
        yield Line(f"{what}: speed", f"{found['tokens_per_second']:.0f} tokens/s", "", None)
        ratio = found["peak_gib"] / found["computed_gib"] if found["computed_gib"] else 0.0
        yield Line(
            f"{what}: memory",
            f"{found['peak_gib']:.2f} GiB",
            f"{found['computed_gib']:.2f} GiB by the formula, within 10%",
            0.9 <= ratio <= 1.1 if sizes.on_gpu else None,
        )


def packed_rows(sizes: Sizes) -> Iterator[Line]:
    """Rows of mixed lengths without padding against padded ones."""
    words = (
        "--shape", sizes.large, "--length", sizes.length, "--mean", sizes.mean, "--rows", 16, "--micro-batch", 8,
        "--steps", 3, *(() if sizes.on_gpu else ("--dtype", "float32")),
    )  # fmt: skip
    padded, packed = measure(sizes, *words), measure(sizes, *words, "--padding-free")
    gain = packed["tokens_per_second"] / padded["tokens_per_second"]
    yield Line(
        f"rows of {padded['row_tokens'][0]} to {padded['row_tokens'][1]} tokens, 8 at a time: without padding",
        f"{gain:.2f} times as fast",
        f"at least {PACKED_GAIN} times",
        gain >= PACKED_GAIN if sizes.on_gpu else None,
    )
    tolerance = 1e-2 if sizes.on_gpu else 1e-4
    yield losses_agree("the same rows: loss", packed["losses"], padded["losses"], tolerance)


def sharded(sizes: Sizes) -> Iterator[Line]:
    """FSDP: one process on the GPU, two on a CPU, against training without it."""
    words = (
        "--shape", sizes.small, "--length", min(sizes.length, 2_000), "--rows", 4, "--steps", 3,
        *(() if sizes.on_gpu else ("--dtype", "float32")),
    )  # fmt: skip
    config = ROOT / "configs" / "accelerate" / ("fsdp.yaml" if sizes.on_gpu else "cpu_fsdp.yaml")
    launch = ("-m", "ratchet.training.launch", "--config_file", str(config))
    processes = 1 if sizes.on_gpu else 2
    found = measure(sizes, *words, launch=(*launch, "--num_processes", str(processes)))
    alone = measure(sizes, *words)
    what = f"FSDP on {found['processes']} process{'es' * (processes > 1)}: loss against none"
    yield losses_agree(what, found["losses"], alone["losses"], 1e-2 if sizes.on_gpu else 1e-4)


def two_adapters(sizes: Sizes) -> Iterator[Line]:
    """Greedy tokens of two adapters in one batch against those of each alone, in float32."""
    device = torch.device("cuda" if sizes.on_gpu else "cpu")
    model = get_peft_model(random_model(SHAPES[sizes.small](), torch.float32, device), adapter_settings(), "first")
    model.add_adapter("second", adapter_settings())
    model.eval()
    prompts = torch.randint(5, 400, (2, 12), generator=torch.Generator().manual_seed(0)).to(device)
    options: dict[str, Any] = {
        "max_new_tokens": 16, "min_new_tokens": 16, "do_sample": False, "pad_token_id": 0,
        "attention_mask": torch.ones_like(prompts),
    }  # fmt: skip
    with torch.no_grad():
        together = model.generate(input_ids=prompts, adapter_names=["first", "second"], **options)
        alone = []
        for name in ("first", "second"):
            model.set_adapter(name)
            alone.append(model.generate(input_ids=prompts, **options))
    wanted = torch.stack([alone[0][0], alone[1][1]])
    same = int((together == wanted).all(1).sum())
    differ = not torch.equal(alone[0], alone[1])
    measured = f"{same} of 2 rows the same; the adapters {'differ' if differ else 'give the same'}"
    yield Line("16 tokens of two adapters in one batch", measured, "2 of 2; they differ", same == 2 and differ)


def adapter_settings() -> PeftLoraConfig:
    """Settings of adapters that are drawn whole, and so change what is generated."""
    return PeftLoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)


def served_by_vllm(sizes: Sizes) -> Iterator[Line]:
    """Two servers on the GPU, then the demo through vLLM while one of its servers is killed."""
    if not sizes.on_gpu or importlib.util.find_spec("vllm") is None:
        yield Line("vLLM", "not run", "vLLM is not installed" if sizes.on_gpu else "needs a GPU", None)
        return
    for what, check in (
        ("two vLLM servers with drawn weights share the GPU", two_servers_share),
        ("the demo in bfloat16, 128 wide, a server killed in between", demo_survives_a_killed_server),
    ):
        try:
            yield Line(what, check(), "it finishes", True)
        except StepFailed as error:
            yield Line(what, str(error), "it finishes", False)


def config_on_gpu() -> dict[str, Any]:
    """configs/demo_vllm.yaml with vLLM of this environment, in bfloat16 on the GPU, 128 requests wide."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "configs" / "demo_vllm.yaml").read_text())
    if not (MODEL / "model.safetensors").exists():
        raise StepFailed(f"{MODEL} is not there: run `make model` where there is a network")
    agent = config["models"]["agent"] | {"dtype": "bfloat16", "device": "auto", "concurrency": 128}
    agent["serve"] = {}
    del agent["send_seed"]
    return config | {"models": {"agent": agent}}


def run(folder: Path, config: dict[str, Any], command: list[str]) -> subprocess.Popen[str]:
    """Start a command on a config in `folder`; its output goes to `folder`/output."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config | {"run": str(folder / "run"), "index": config["index"]}))
    filled = [str(path) if word == "CONFIG" else word for word in command]
    with (folder / "output").open("w") as out:
        return subprocess.Popen([sys.executable, *filled], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, text=True)


def end(process: subprocess.Popen[str], folder: Path, seconds: float) -> str:
    """Wait for a command; the time it took. Raises StepFailed with the last line of its output."""
    began = time.monotonic()
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait(60)
        raise StepFailed(f"not finished after {seconds:.0f} s") from None
    if status:
        last = ((folder / "output").read_text().strip().splitlines() or ["it said nothing"])[-1]
        raise StepFailed(f"exit status {status}: {last[:120]}")
    return f"finished in {time.monotonic() - began:.0f} s"


def two_servers_share() -> str:
    """A server in the shape of 7B parameters and one of 135M, with drawn weights, ready at the same time."""
    config = config_on_gpu()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = {}
        for role, shape in (("agent", "qwen2.5-7b"), ("judge", "smollm2-135m")):
            path = folder / role
            SHAPES[shape]().save_pretrained(path)
            for file in MODEL.glob("*token*"):
                shutil.copy(file, path)
            arguments = {"load-format": "dummy"}
            models[role] = config["models"]["agent"] | {"path": str(path), "serve": {"arguments": arguments}}
        served = [
            *("-m", "ratchet", "models", "serve", "--config", "CONFIG", "--models", "agent,judge", "--"),
            sys.executable,
        ]
        process = run(folder, config | {"models": models}, [*served, "-c", "print('both are ready')"])
        return end(process, folder, SERVE_SECONDS)


def demo_survives_a_killed_server() -> str:
    """selftrain.py of the demo; the first process of vLLM that is there while it samples is killed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        process = run(folder, config_on_gpu(), ["selftrain.py", "--config", "CONFIG"])
        killed = kill_server(process, folder / "run" / "round-1" / "trajectories", DEMO_SECONDS / 2)
        said = end(process, folder, DEMO_SECONDS)
        if not killed:
            raise StepFailed(f"{said}, and no server was found to kill")
        return f"{said}, one server killed"


def kill_server(process: subprocess.Popen[str], trajectories: Path, seconds: float) -> bool:
    """Kill a vLLM server below `process` once there are trajectories; whether there was one."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        if any(trajectories.glob("*.jsonl")):
            for child in psutil.Process(process.pid).children(recursive=True):
                try:
                    words = child.cmdline()
                except psutil.Error:
                    continue
                # the process that watches over the server has the server's words among its own, further behind
                if words[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]:
                    child.kill()
                    return True
        time.sleep(0.5)
    return False


STEPS: dict[str, Callable[[Sizes], Iterator[Line]]] = {
    "loss": same_loss_as_on_the_cpu,
    "step": training_step,
    "packed": packed_rows,
    "fsdp": sharded,
    "adapters": two_adapters,
    "vllm": served_by_vllm,
}


def check(sizes: Sizes, steps: Sequence[str]) -> list[Line]:
    """The lines of some steps; one that fails is a line too."""
    lines: list[Line] = []
    for name in steps:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            lines += STEPS[name](sizes)
        except (StepFailed, UserError, RuntimeError) as error:  # torch has the last for memory and for missing kernels
            lines.append(Line(name, str(error).splitlines()[0][:160], "it finishes", False))
    return lines


def main(words: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a line falls short."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description="Check training on this GPU.")
    parser.add_argument("--cpu", action="store_true", help="tiny shapes on the CPU, also where there is a GPU")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS), help="only these steps")
    arguments = parser.parse_args(words)
    sizes = GPU if torch.cuda.is_available() and not arguments.cpu else CPU
    device = torch.cuda.get_device_name() if sizes.on_gpu else "CPU"
    table = Table("", "measured", "expected", "", title=f"{device}, torch {torch.__version__}")
    lines = check(sizes, arguments.steps)
    for line in lines:
        verdict = {True: "ok", False: "FALLS SHORT", None: "not judged"}[line.passed]
        table.add_row(line.what, line.measured, line.expected, verdict)
    wide_console(160).print(table)
    return int(any(line.passed is False for line in lines))


if __name__ == "__main__":
    sys.exit(main())
