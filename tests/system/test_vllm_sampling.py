"""Sampling through a real vLLM server that is killed in the middle: it comes back, and nothing is lost or repeated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inference.adapters import adapter_digest
from tests.helpers.experiment import command
from tests.helpers.vllm_sampling import QUESTIONS, SAMPLES, make_adapter, make_config, sample_and_kill


@pytest.mark.vllm
@pytest.mark.model
@pytest.mark.slow
def test_a_server_killed_in_the_middle_of_sampling(smollm2: Path, tmp_path: Path) -> None:
    config, adapter = make_config(tmp_path, smollm2), make_adapter(tmp_path / "adapter", smollm2)
    built = command("-m", "index_build", "--config", str(config))
    assert built.returncode == 0, built.stdout
    made = sample_and_kill(config, tmp_path / "run", adapter, [(2, 0.0)])
    assert made.status == 0, made.said
    assert "agent-1 ended with status 137" in made.said and made.said.count("agent-1 is ready") == 2, made.said

    keys = [t.key for t in made.trajectories]
    assert len(keys) == len(set(keys)) == QUESTIONS * SAMPLES, made.said
    assert 2 <= len(made.before) < len(keys), "the server was not killed in the middle"
    assert made.before < set(keys)
    # All of them by the adapter, also after the restart, which had forgotten it.
    assert {t.policy for t in made.trajectories} == {adapter_digest(adapter)}
    assert "failed" not in {t.status for t in made.trajectories}
    loads = re.findall(r"POST /v1/load_lora_adapter[^\n]* 200", made.log)
    assert len(loads) == 2, loads
    assert not made.servers
