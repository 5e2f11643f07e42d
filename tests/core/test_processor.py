"""What is read of the CPU, and the number format that `dtype: auto` takes for it."""

import os
from pathlib import Path

import pytest
import torch

from ratchet.core.config import ModelConfig
from ratchet.core.processor import computes_bfloat16, usable_memory


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
    monkeypatch.setattr("ratchet.core.processor.CPU_INFO", info)
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)  # as make test-narrow sets it
    assert computes_bfloat16.__wrapped__() is found
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert not computes_bfloat16.__wrapped__()
    monkeypatch.delenv("ATEN_CPU_CAPABILITY")
    monkeypatch.setattr("ratchet.core.processor.CPU_INFO", tmp_path / "missing")
    assert not computes_bfloat16.__wrapped__()


@pytest.mark.parametrize(
    ("groups", "limits", "usable"),
    [
        ("0::/job/step", {"job/memory.max": "4096", "job/step/memory.max": "max"}, 4096),
        ("0::/job/step", {"job/memory.max": "4096", "job/step/memory.max": "2048"}, 2048),
        ("5:cpu,cpuacct:/job\n4:memory:/job\n0::/", {"memory/job/memory.limit_in_bytes": "8192"}, 8192),
        ("0::/outside/of/the/container", {"memory.max": "1024"}, 1024),
        ("0::/", {}, None),
        (None, {}, None),
    ],
)
def test_a_limit_of_a_job_or_a_container_is_the_memory_that_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str | None, limits: dict[str, str], usable: int | None
) -> None:
    own, everywhere = tmp_path / "own", tmp_path / "groups"
    for name, limit in limits.items():
        (everywhere / name).parent.mkdir(parents=True, exist_ok=True)
        (everywhere / name).write_text(limit + "\n")
    if groups is not None:
        own.write_text(groups + "\n")
    monkeypatch.setattr("ratchet.core.processor.OWN_GROUPS", own)
    monkeypatch.setattr("ratchet.core.processor.ALL_GROUPS", everywhere)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert usable_memory() == (machine if usable is None else usable)


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
    monkeypatch.setattr("ratchet.core.config.models.computes_bfloat16", lambda: fast)
    model = ModelConfig.model_validate({"path": "m", "dtype": "auto", "device": device})
    assert model.dtype == dtype == model.model_dump()["dtype"], "what is recorded is what was taken"
    assert ModelConfig.model_validate({"path": "m", "dtype": "float32", "device": "cuda"}).dtype == "float32"
