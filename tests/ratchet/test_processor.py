"""What is read of the CPU, and the number format that `dtype: auto` takes for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ratchet.config import ModelConfig
from ratchet.processor import computes_bfloat16


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("fpu avx512f avx512_bf16 amx_tile", True),
        ("fpu amx_bf16", True),
        ("fpu avx512f avx512_vnni", False),
        ("", False),
    ],
)
def test_instructions_for_bfloat16_are_read_of_the_systems_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, found: bool
) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor\t: 0\nmodel name\t: avx512_bf16 in name alone\nflags\t\t: {flags}\n")
    monkeypatch.setattr("ratchet.processor.CPU_INFO", info)
    assert computes_bfloat16.__wrapped__() is found
    monkeypatch.setattr("ratchet.processor.CPU_INFO", tmp_path / "missing")
    assert not computes_bfloat16.__wrapped__()


def test_torch_knows_the_same_of_this_cpu() -> None:
    known = torch.cpu.get_capabilities()
    assert computes_bfloat16() is bool(known.get("amx_bf16") or known.get("avx512_bf16"))


@pytest.mark.parametrize(
    ("device", "fast", "dtype"),
    [("cpu", True, "bfloat16"), ("cpu", False, "float32"), ("auto", False, "bfloat16"), ("cuda", False, "bfloat16")],
)
def test_auto_is_the_number_format_that_the_device_computes_fast(
    monkeypatch: pytest.MonkeyPatch, device: str, fast: bool, dtype: str
) -> None:
    monkeypatch.setattr("ratchet.config.models.computes_bfloat16", lambda: fast)
    model = ModelConfig.model_validate({"path": "m", "dtype": "auto", "device": device})
    assert model.dtype == dtype == model.model_dump()["dtype"], "what is recorded is what was taken"
    assert ModelConfig.model_validate({"path": "m", "dtype": "float32", "device": "cuda"}).dtype == "float32"
