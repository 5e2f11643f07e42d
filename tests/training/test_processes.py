"""Two CPU processes under the real `accelerate launch`, DDP and FSDP, against one process."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from safetensors.torch import load_file
from torch.distributed import DistBackendError
from trl import SFTTrainer

from ratchet.config import Config
from ratchet.errors import UserError
from ratchet.files import read_log
from ratchet.runfolder import RoundFolder
from rounds.stage import ExperimentRun
from rounds.stages import training_stage
from tests.helpers.experiment import preloaded, running
from tests.helpers.world import make_run, make_trainer, tiny_model, trl_head_on_cpu
from training import recipe
from training.checkpoints import find_damage, seal
from training.order import EpochSampler
from training.processes import explain_lost_processes
from training.trainer import RowTrainer, with_blank_row

REPO = Path(__file__).parents[2]
CONFIGS = REPO / "configs" / "accelerate"
IN_BF16 = Path(__file__).parents[1] / "helpers" / "train_in_bf16.py"
# 18 rows in steps of 8: an epoch ends with a step of two, which is one row for each process.
SETTINGS: dict[str, Any] = {
    "questions": 11, "batch_size": 8, "max_steps": 16, "eval_steps": 4, "gradient_checkpointing": True
}  # fmt: skip


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> RoundFolder:
    """The round as one process trains it."""
    _, config, folder = make_run(tmp_path_factory.mktemp("alone"), micro_batch=8, **SETTINGS)
    recipe.train(config, 1)
    return folder


def launch(processes: str, config: Path, *options: str, program: Path | str = "train.py") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(CONFIGS / processes), *options]
    return start([*command, str(program)], config)


def workers_of(launcher: subprocess.Popen[str]) -> list[psutil.Process]:
    """The two processes that train: what happens to them happens to those that were forked for them."""
    started = psutil.Process(running(launcher)).children()
    workers = [child for child in started if "train.py" in " ".join(child.cmdline())]
    assert len(workers) == 2
    return workers


def start(command: list[str], config: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*command, "--config", str(config)],
        cwd=REPO,
        env=preloaded(OMP_NUM_THREADS="1"),
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        said = process.communicate(timeout=180)[1]
    finally:
        process.kill()
    return process.returncode, said


def assert_same(folder: RoundFolder, alone: RoundFolder, rel: float = 1e-5) -> None:
    """Loss, gradient norm, tokens and dev loss of every step, and the adapter, within what rounding does."""
    ours, theirs = (
        [{key: value for key, value in line.items() if key != "tokens_per_second"} for line in read_log(log)]
        for log in (folder.training / "log.jsonl", alone.training / "log.jsonl")
    )
    assert ours == [pytest.approx(line, rel=rel) for line in theirs]
    weights, wanted = (load_file(one.adapter / "adapter_model.safetensors") for one in (folder, alone))
    assert weights.keys() == wanted.keys()
    assert all(torch.allclose(weights[name], wanted[name], atol=rel) for name in wanted)
    assert max(float(weight.abs().max()) for name, weight in wanted.items() if "lora_B" in name) > 0.01


@pytest.mark.slow
def test_the_stage_that_selftrain_plans_for_two_gpus_gives_the_curve_and_the_adapter_of_one_process(
    alone: RoundFolder, tmp_path: Path
) -> None:
    path, config, folder = make_run(tmp_path, micro_batch=2, **SETTINGS)
    path.write_text(path.read_text().replace("device: cpu", "device: auto"))
    stage = training_stage(ExperimentRun(config, ("--config", str(path)), processes=2), 1, None)
    assert subprocess.run(stage.command, cwd=REPO, env=preloaded(OMP_NUM_THREADS="1")).returncode == 0
    assert_same(folder, alone)
    assert (folder.adapter / "training.json").exists()
    assert (folder.training / "checkpoint-16" / "rng_state_1.pth").exists(), "there was one process alone"


@pytest.mark.slow
def test_two_processes_with_fewer_rows_than_a_batch_learn_as_one_does(tmp_path: Path) -> None:
    few: dict[str, Any] = {"questions": 4, "batch_size": 128, "micro_batch": 1, "warmup_steps": 50, "epochs": 2.0}
    _, config, alone = make_run(tmp_path / "one", **few)
    recipe.train(config, 1)
    path, _, folder = make_run(tmp_path / "two", **few)
    status, said = finish(launch("cpu_ddp.yaml", path))
    assert status == 0 and said.count("every step takes all of them") == 1, said
    assert "2 steps of 8 rows" in said
    assert_same(folder, alone)


@pytest.mark.slow
def test_sharded_over_two_of_which_one_is_killed_it_ends_at_once_and_goes_on_to_the_same(
    alone: RoundFolder, tmp_path: Path
) -> None:
    path, _, folder = make_run(tmp_path, micro_batch=4, **SETTINGS)
    process = launch("cpu_fsdp.yaml", path)
    deadline = time.monotonic() + 180
    while not (folder.training / "checkpoint-4" / "complete.json").exists():
        assert process.poll() is None and time.monotonic() < deadline, finish(process)[1]
        time.sleep(0.002)
    workers = workers_of(process)
    workers[0].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    status, said = finish(process)
    assert time.monotonic() - killed < 60 and status == 1 and not folder.adapter.exists()
    assert "Signal 9 (SIGKILL)" in said and not any(worker.is_running() for worker in workers)

    # Every process kept a part of every weight: in the file is the adapter whole, and nothing frozen but a tied head.
    saved = torch.load(folder.training / "checkpoint-4" / "pytorch_model_fsdp.bin", weights_only=True)
    assert {name for name in saved if "lora_" not in name} <= {"base_model.model.lm_head.weight"}
    status, said = finish(launch("cpu_fsdp.yaml", path))
    assert status == 0 and "of 16 were done before; resuming" in said, said
    assert_same(folder, alone)


@pytest.mark.slow
def test_two_of_which_one_is_told_to_stop_save_together_and_go_on_to_the_same(
    alone: RoundFolder, tmp_path: Path
) -> None:
    path, _, folder = make_run(tmp_path, micro_batch=4, **SETTINGS)
    process = launch("cpu_ddp.yaml", path)
    deadline = time.monotonic() + 180
    while not any("loss" in line for line in read_log(folder.training / "log.jsonl")):
        assert process.poll() is None and time.monotonic() < deadline, finish(process)[1]
        time.sleep(0.002)
    workers_of(process)[1].send_signal(signal.SIGUSR1)
    status, said = finish(process)
    assert status == 1 and "SIGUSR1: training ends after this step" in said and not folder.adapter.exists(), said
    last = max(line["step"] for line in read_log(folder.training / "log.jsonl") if "loss" in line)
    assert (folder.training / f"checkpoint-{last}" / "complete.json").exists()
    status, said = finish(launch("cpu_ddp.yaml", path))
    assert status == 0 and f"{last} of 16 were done before; resuming" in said, said
    assert_same(folder, alone)


def make_bf16_run(folder: Path) -> tuple[Path, Config, RoundFolder]:
    """18 rows in steps of 12, two at a time: each of two processes accumulates three micro-batches, and a blank one at
    the end of an epoch. Gradients are clipped. The head is not tied to the embeddings: only the loss uses it."""
    tiny_model(folder / "model", tied=False)
    return make_run(folder, **SETTINGS | {"batch_size": 12, "micro_batch": 2, "max_steps": 8, "max_grad_norm": 0.1})


@pytest.fixture(scope="module")
def alone_in_bf16(tmp_path_factory: pytest.TempPathFactory) -> RoundFolder:
    path, _, folder = make_bf16_run(tmp_path_factory.mktemp("alone_in_bf16"))
    status, said = finish(start([sys.executable, str(IN_BF16)], path))
    assert status == 0, said
    return folder


@pytest.mark.slow
@trl_head_on_cpu
def test_in_bf16_two_processes_give_what_one_gives(alone_in_bf16: RoundFolder, tmp_path: Path) -> None:
    path, _, folder = make_bf16_run(tmp_path)
    status, said = finish(launch("cpu_ddp.yaml", path, program=IN_BF16))
    assert status == 0, said
    assert_same(folder, alone_in_bf16)


@pytest.mark.slow
@trl_head_on_cpu
def test_sharded_in_bf16_they_give_the_same_and_go_on_from_a_checkpoint(
    alone_in_bf16: RoundFolder, tmp_path: Path
) -> None:
    """Nothing is rounded to bf16 but the frozen weights and the compute. A loss or an adapter rounded to bf16 is off by
    up to 4e-3 of itself; what a CPU rounds of a product depends on its shape (below 1e-3 on an AMD EPYC)."""
    path, _, folder = make_bf16_run(tmp_path)
    status, said = finish(launch("cpu_fsdp.yaml", path, program=IN_BF16))
    assert status == 0, said
    assert_same(folder, alone_in_bf16, rel=1e-3)
    weights = load_file(folder.adapter / "adapter_model.safetensors").values()
    rounded = [torch.equal(weight, weight.bfloat16().float()) for weight in weights]
    assert not any(rounded)

    # The last four steps again, with each layer's weights kept in memory after a forward pass, as fsdp.yaml offers.
    for done in (folder.adapter, *(folder.training / name for name in ("checkpoint-8", "evaluated-8"))):
        shutil.rmtree(done)
    status, said = finish(launch("cpu_fsdp.yaml", path, "--fsdp_reshard_after_forward", "false", program=IN_BF16))
    assert status == 0 and "4 of 8 were done before; resuming" in said, said
    assert_same(folder, alone_in_bf16, rel=1e-3)


def test_the_configs_are_accelerates_and_their_cpu_twins_differ_in_the_device_alone() -> None:
    for name, kind in (("ddp", "MULTI_GPU"), ("fsdp", "FSDP")):
        gpus, cpus = (load_config_from_file(str(CONFIGS / f"{prefix}{name}.yaml")) for prefix in ("", "cpu_"))
        assert gpus.distributed_type.value == cpus.distributed_type.value == kind
        assert gpus.fsdp_config == cpus.fsdp_config and (gpus.use_cpu, cpus.use_cpu) == (False, True)


def test_an_epoch_is_filled_up_with_the_blank_row_and_no_other() -> None:
    for rows, blanks in ((18, 2), (20, 0), (3, 1)):
        order = list(EpochSampler([5] * rows, 8, 0, lambda: 0, rows_at_once=4))
        assert sorted(order[:rows]) == list(range(rows)) and order[rows:] == [rows] * blanks
        assert len(EpochSampler([5] * rows, 8, 0, lambda: 0, rows_at_once=4)) == len(order)


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


def test_a_checkpoint_in_folders_is_sealed_too(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "0.distcp").write_bytes(b"weights")
    seal(tmp_path)
    assert find_damage(tmp_path) is None
    (tmp_path / "shards" / "0.distcp").write_bytes(b"weight")
    assert find_damage(tmp_path) == "shards/0.distcp is damaged"


def test_a_lost_process_is_told_from_other_errors() -> None:
    for error in (DistBackendError("NCCL timed out"), RuntimeError("[gloo/tcp/pair.cc] Connection closed by peer")):
        with (
            pytest.raises(UserError, match=r"another process of this training.*same command again"),
            explain_lost_processes(),
        ):
            raise error
    with pytest.raises(RuntimeError, match="shapes"), explain_lost_processes():
        raise RuntimeError("shapes cannot be multiplied")
