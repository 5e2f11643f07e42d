"""On how many processes selftrain.py trains is settled before it samples."""

import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from ratchet.commands import selftrain
from ratchet.core.config import load_config
from ratchet.core.errors import UserError
from ratchet.inference.serving.memory import Gpu
from ratchet.questions.manifest import open_run
from tests.helpers.commands import command_of
from tests.helpers.experiment import ROOT, make_experiment

Planned = Callable[..., str]
DDP = str(ROOT / "configs" / "accelerate" / "ddp.yaml")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_experiment(tmp_path_factory.mktemp("processes"), questions=2)


@pytest.fixture
def planned(config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Planned:
    """What `selftrain.py --dry-run` prints on a machine with so many GPUs, up to the training command's end."""

    def run(gpus: int, *arguments: str, device: str = "auto") -> str:
        monkeypatch.setattr(selftrain, "visible_gpus", lambda: [Gpu(str(i), 80 << 30, 80 << 30) for i in range(gpus)])
        where = ["--config", str(config), "--set", f"models.agent.device={device}"]
        monkeypatch.setattr(sys, "argv", ["selftrain.py", *where, *arguments, "--dry-run"])
        command_of("selftrain")()
        printed = capsys.readouterr().out
        return printed[: printed.index("# evaluate")]

    return run


@pytest.mark.parametrize(
    ("gpus", "batch", "micro", "processes"),
    [(2, 128, 1, 2), (8, 128, 2, 8), (3, 128, 1, 2), (2, 7, 1, 1), (6, 24, 4, 6)],
)
def test_training_takes_the_visible_gpus_that_divide_the_batch(
    planned: Planned, gpus: int, batch: int, micro: int, processes: int
) -> None:
    settings = ("--set", f"training.batch_size={batch}", "--set", f"training.micro_batch={micro}")
    printed = planned(gpus, *settings)
    assert f"training uses {processes} of {gpus} visible GPUs" in printed
    assert ("cannot be divided over more" in printed) == (processes < gpus)
    launched = f"-m ratchet.training.launch --config_file {DDP} --num_processes {processes} -m ratchet train"
    assert launched in printed


@pytest.mark.parametrize(("gpus", "device"), [(0, "auto"), (1, "auto"), (8, "cpu")])
def test_training_without_several_gpus_to_use_needs_no_launcher(
    planned: Planned, config: Path, gpus: int, device: str
) -> None:
    printed = planned(gpus, device=device)
    assert f"{sys.executable} -P -m ratchet train --config" in printed and "accelerate" not in printed


@pytest.mark.parametrize(
    ("gpus", "file", "processes"),
    [
        (4, "ddp.yaml", 4),
        (8, "ddp.yaml", 4),  # of the batch of 4
        (1, "fsdp.yaml", 1),
        (4, "cpu_ddp.yaml", None),
    ],
)
def test_a_file_for_accelerate_gets_its_processes_from_the_machine(
    planned: Planned, gpus: int, file: str, processes: int | None
) -> None:
    """Every file here says 8, or 2 for CPUs, as an example."""
    arguments = ("--accelerate", f"configs/accelerate/{file}", "--set", "training.micro_batch=1")
    printed = planned(gpus, *arguments)
    count = "" if processes is None else f"--num_processes {processes} "
    assert f"--config_file configs/accelerate/{file} {count}-m ratchet train" in printed


def test_a_file_for_several_machines_is_taken_as_it_is(planned: Planned, tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(Path(DDP).read_text().replace("num_machines: 1", "num_machines: 2").replace(": 8", ": 4"))
    arguments = ("--accelerate", str(file), "--set", "training.micro_batch=1")
    assert f"--config_file {file} -m ratchet train" in planned(2, *arguments)


@pytest.mark.parametrize(
    ("gpus", "arguments", "said"),
    [
        (0, ("--set", "training.micro_batch=3"), r"batch_size=4 cannot be divided into training\.micro_batch=3"),
        (4, ("--set", "training.micro_batch=3"), r"batch_size=4 cannot be divided into training\.micro_batch=3"),
        (0, ("--accelerate", DDP), r"batch_size=4 cannot .* on 8 devices: set training\.batch_size="),
    ],
)
def test_a_batch_that_cannot_be_divided_is_refused_before_the_first_stage(
    planned: Planned, config: Path, gpus: int, arguments: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        planned(gpus, *arguments)
    assert not (config.parent / "run").exists()


def test_a_run_goes_on_on_another_device_and_not_in_another_precision(tmp_path: Path) -> None:
    path = make_experiment(tmp_path, questions=2)
    run = open_run(load_config(path))
    run.round(1).trajectories.mkdir(parents=True)
    (run.round(1).trajectories / "part-0-of-1.jsonl").write_text("{}\n")
    assert open_run(load_config(path, ["models.agent.device=auto"])).path == run.path
    with pytest.raises(UserError, match=r"models\.agent\.dtype"):
        open_run(load_config(path, ["models.agent.dtype=bfloat16"]))


@pytest.mark.parametrize(
    ("gpus", "setting", "said"),
    [
        (0, "training.backend=unsloth", r"training\.backend=unsloth needs an NVIDIA GPU.*training\.backend=peft"),
        (1, "training.backend=unsloth", r"unsloth is not installed; pip install 'ratchet-agents\[unsloth\]'"),
    ],
)
def test_kernels_that_cannot_run_here_are_refused_before_the_first_stage(
    planned: Planned, monkeypatch: pytest.MonkeyPatch, gpus: int, setting: str, said: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=said):
        planned(gpus, "--set", setting)


def test_a_baseline_s_adapter_that_is_missing_is_named_before_the_first_stage(planned: Planned) -> None:
    settings = ("evaluation.baselines={plain: {name: no_retrieval}}", "evaluation.adapters={plain: missing}")
    with pytest.raises(UserError, match=r"evaluation\.adapters\.plain: missing: there is no adapter here"):
        planned(0, *(word for one in settings for word in ("--set", one)))


def test_kernels_that_are_installed_beside_a_gpu_are_not_imported_for_the_check(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ModuleSpec(name, None))
    assert "ratchet train" in planned(1, "--set", "training.backend=unsloth")
    assert "unsloth" not in sys.modules
