"""Two CPU processes under the real `accelerate launch`, DDP and FSDP, against one process."""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
import torch
import transformers
from accelerate.commands.config.config_args import load_config_from_file
from packaging.version import Version
from safetensors.torch import load_file
from torch.distributed import DistBackendError
from trl import SFTTrainer

from ratchet.commands.train import train_round
from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.files import read_log
from ratchet.core.runfolder import RoundFolder
from ratchet.rounds.stages import LAUNCH, TRAIN, ExperimentRun, training_stage
from ratchet.training.batches import EpochSampler
from ratchet.training.processes import explain_lost_processes
from ratchet.training.trainer import RowTrainer, with_blank_row
from tests.helpers.experiment import preloaded
from tests.helpers.world import curve, make_run, make_trainer, tiny_model, trl_head_on_cpu

REPO = Path(__file__).parents[2]
CONFIGS = REPO / "configs" / "accelerate"
PROGRAM = Path(__file__).parents[1] / "helpers" / "train_for_tests.py"
# 18 rows in steps of 8: an epoch ends with a step of two, which is one row for each process.
SETTINGS: dict[str, Any] = {
    "questions": 11, "batch_size": 8, "max_steps": 8, "eval_steps": 4, "gradient_checkpointing": True
}  # fmt: skip


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> RoundFolder:
    """The round as one process trains it."""
    _, config, folder = make_run(tmp_path_factory.mktemp("alone"), micro_batch=8, **SETTINGS)
    train_round(config, 1)
    return folder


def launch(processes: str, config: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    """Two processes; `environment`: see `PROGRAM`."""
    command = [sys.executable, "-m", "ratchet.training.launch", "--config_file", str(CONFIGS / processes), *options]
    return start([*command, str(PROGRAM), "--config", str(config)], **environment)


def start(command: Sequence[str], **environment: str) -> subprocess.Popen[str]:
    """A command whose messages `finish` returns."""
    env = preloaded(OMP_NUM_THREADS="1", **environment)
    return subprocess.Popen(command, cwd=REPO, env=env, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        said = process.communicate(timeout=600)[1]
    finally:
        process.kill()
    return process.returncode, said


def assert_same(folder: RoundFolder, alone: RoundFolder, rel: float = 1e-5) -> None:
    """Loss, gradient norm, tokens and dev loss of every step, and the adapter, within what rounding does."""
    assert curve(folder) == [pytest.approx(line, rel=rel) for line in curve(alone)]
    weights, wanted = (load_file(one.adapter / "adapter_model.safetensors") for one in (folder, alone))
    assert weights.keys() == wanted.keys()
    assert all(torch.allclose(weights[name], wanted[name], atol=rel) for name in wanted)
    assert max(float(weight.abs().max()) for name, weight in wanted.items() if "lora_B" in name) > 0.01


@pytest.mark.slow
@pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.18"),
    reason="before 5.18, transformers asks torch.load for the device cpu:0 where a launch for GPUs finds none",
)
def test_the_stage_that_selftrain_plans_for_two_gpus_stops_with_one_process_and_gives_the_curve_of_one(
    alone: RoundFolder, tmp_path: Path
) -> None:
    path, config, folder = make_run(tmp_path, micro_batch=2, **SETTINGS)
    path.write_text(path.read_text().replace("device: cpu", "device: auto"))
    stage = training_stage(ExperimentRun(config, ("--config", str(path)), processes=2), 1, None)
    launch, settings = (
        stage.command[: stage.command.index("--config")],
        stage.command[stage.command.index("--config") :],
    )
    assert launch[-3:] == TRAIN
    told = [*launch[:-3], str(PROGRAM), *settings]
    status, said = finish(start(told, DISTURB="SIGUSR1 1 1"))
    assert status == 143 and "SIGUSR1: training ends after this step" in said and not folder.adapter.exists(), said
    assert [line["step"] for line in read_log(folder.training / "log.jsonl") if "loss" in line] == [1, 2]
    assert (folder.training / "checkpoint-2" / "complete.json").exists()

    status, said = finish(start(stage.command))
    assert status == 0 and "2 of 8 were done before; resuming" in said, said
    assert_same(folder, alone)
    assert (folder.adapter / "training.json").exists()
    assert (folder.training / "checkpoint-8" / "rng_state_1.pth").exists(), "there was one process alone"


def make_bf16_run(folder: Path) -> tuple[Path, Config, RoundFolder]:
    """18 rows in steps of 12, two at a time: each of two processes accumulates three micro-batches, and a blank one at
    the end of an epoch. The head is not tied to the embeddings: only the loss uses it."""
    tiny_model(folder / "model", tied=False)
    settings = {"batch_size": 12, "micro_batch": 2, "max_steps": 6, "eval_steps": 3}
    return make_run(folder, **SETTINGS | settings)


@pytest.fixture(scope="module")
def alone_in_bf16(tmp_path_factory: pytest.TempPathFactory) -> RoundFolder:
    path, _, folder = make_bf16_run(tmp_path_factory.mktemp("alone_in_bf16"))
    status, said = finish(start([sys.executable, str(PROGRAM), "--config", str(path)], IN_BF16="1"))
    assert status == 0, said
    return folder


@pytest.mark.slow
@trl_head_on_cpu
def test_sharded_in_bf16_over_two_of_which_one_is_killed_it_ends_at_once_and_goes_on_to_the_same(
    alone_in_bf16: RoundFolder, tmp_path: Path
) -> None:
    """Nothing is rounded to bf16 but the frozen weights and the compute. A loss or an adapter rounded to bf16 is off by
    up to 4e-3 of itself; what a CPU rounds of a product depends on its shape (below 1e-3 on an AMD EPYC)."""
    path, _, folder = make_bf16_run(tmp_path)
    began = time.monotonic()
    status, said = finish(launch("cpu_fsdp.yaml", path, IN_BF16="1", DISTURB="SIGKILL 4 0"))
    assert time.monotonic() - began < 600 and status == 137 and not folder.adapter.exists()
    assert "a process of the training was killed" in said and "ChildFailedError" not in said
    workers = [int((folder.training / f"process-{rank}").read_text()) for rank in (0, 1)]
    deadline = time.monotonic() + 300
    while any(psutil.pid_exists(worker) for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert read_log(folder.training / "log.jsonl")[-1]["step"] == 4

    # Every process kept a part of every weight: in the file is the adapter whole, and nothing frozen but a tied head.
    saved = torch.load(folder.training / "checkpoint-3" / "pytorch_model_fsdp.bin", weights_only=True)
    assert {name for name in saved if "lora_" not in name} <= {"base_model.model.lm_head.weight"}

    # The other steps with each layer's weights kept in memory after a forward pass, as fsdp.yaml offers.
    status, said = finish(launch("cpu_fsdp.yaml", path, "--fsdp_reshard_after_forward", "false", IN_BF16="1"))
    assert status == 0 and "3 of 6 were done before; resuming" in said, said
    assert_same(folder, alone_in_bf16, rel=1e-3)
    weights = load_file(folder.adapter / "adapter_model.safetensors").values()
    rounded = [torch.equal(weight, weight.bfloat16().float()) for weight in weights]
    assert not any(rounded)


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--cpu", "--num_processes=1"), ("--config_file", str(CONFIGS / "cpu_ddp.yaml"))])
def test_an_error_is_its_own_lines_without_the_launchers(options: Sequence[str], tmp_path: Path) -> None:
    path, _, _ = make_run(tmp_path, **SETTINGS)
    own = ("--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no")
    status, said = finish(start([*LAUNCH, *own, *options, *TRAIN, "--config", str(path), "--set", "training.epochs=x"]))
    assert status == 2
    lines = [line for line in said.splitlines() if line]
    assert lines and all(line.startswith("error: ") and "training.epochs" in line for line in lines), said


def test_the_configs_are_accelerates_and_their_cpu_twins_differ_in_the_device_alone() -> None:
    for name, kind in (("ddp", "MULTI_GPU"), ("fsdp", "FSDP")):
        gpus, cpus = (load_config_from_file(str(CONFIGS / f"{prefix}{name}.yaml")) for prefix in ("", "cpu_"))
        assert gpus.distributed_type.value == cpus.distributed_type.value == kind
        assert gpus.fsdp_config == cpus.fsdp_config and (gpus.use_cpu, cpus.use_cpu) == (False, True)


def test_an_epoch_is_filled_up_with_the_blank_row_and_no_other() -> None:
    for rows, blanks in ((18, 2), (20, 0), (3, 1)):
        own = list(range(rows))
        sampler = EpochSampler(lambda epoch, own=own: own, rows, rows, lambda: 0, rows_at_once=4)  # type: ignore[misc]
        assert list(sampler) == own + [rows] * blanks and len(sampler) == rows + blanks


@trl_head_on_cpu
def test_a_micro_batch_of_blank_rows_adds_nothing_and_has_a_gradient(tmp_path: Path) -> None:
    _, config, folder = make_run(tmp_path)
    trainer, table = make_trainer(config, folder, tmp_path)
    blank = with_blank_row(table).slice(len(table)).to_pylist()
    row = table.slice(0, 1).to_pylist()
    for compute in (RowTrainer.compute_loss, SFTTrainer.compute_loss):  # on a GPU it is TRL's
        nothing = compute(trainer, trainer.model, trainer.data_collator(blank * 2), num_items_in_batch=torch.tensor(7))
        trainer.model.zero_grad()
        nothing.backward()
        gradients = [weight.grad for weight in trainer.model.parameters() if weight.requires_grad]
        assert nothing.item() == 0 and all(one is not None and not one.any() for one in gradients)
        assert trainer.tokens == 0
    for compute in (RowTrainer.compute_loss, SFTTrainer.compute_loss):
        losses = [
            compute(trainer, trainer.model, trainer.data_collator(rows), num_items_in_batch=torch.tensor(7)).item()
            for rows in (row, row + blank)
        ]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert trainer.tokens == 2 * len(row[0]["ids"])


def test_a_lost_process_is_told_from_other_errors() -> None:
    for error in (DistBackendError("NCCL timed out"), RuntimeError("[gloo/tcp/pair.cc] Connection closed by peer")):
        with (
            pytest.raises(UserError, match=r"another process of this training.*same command again"),
            explain_lost_processes(),
        ):
            raise error
    with pytest.raises(RuntimeError, match="shapes"), explain_lost_processes():
        raise RuntimeError("shapes cannot be multiplied")
