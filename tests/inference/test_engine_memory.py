"""The memory of a process with an engine in it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

STEPS = """
import sys
from ratchet.inference.local.model import Chunk, PackedModel
from ratchet.core.config import ModelConfig

def resident():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))

model = PackedModel(ModelConfig(path=sys.argv[1], device="cpu", cache_gb=0.01, workers=1))
for tokens in range(1, 241):
    model.forward([Chunk([1] * tokens, 0, list(range(-(-tokens // 16))), 0)])
    if tokens == 60:
        before = resident()
print(resident() - before)
"""


@pytest.mark.slow
def test_steps_of_many_sizes_do_not_add_compiled_code_for_ever(tmp_path: Path) -> None:
    """In a process of its own: torch and oneDNN read how much they keep at the first product."""
    shape = LlamaConfig(
        vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(shape).to(torch.bfloat16).save_pretrained(tmp_path)
    done = subprocess.run([sys.executable, "-c", STEPS, str(tmp_path)], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 100, "MiB"
