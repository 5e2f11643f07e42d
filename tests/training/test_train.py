"""train.py as its users meet it: the loss, the curve after a kill, the adapter, and what it says when it cannot."""

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTTrainer

from ratchet.commands.train import train_round
from ratchet.core.config import Config, TrainingConfig, load_config
from ratchet.core.errors import UserError
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.training import recipe
from ratchet.training.adapter import RESULTS_BEGIN, RESULTS_END
from ratchet.training.batches import epoch_order
from ratchet.training.callback import TrainingCallback
from ratchet.training.checkpoints import EvaluatedAdapters
from ratchet.training.lora import mixes_precision
from ratchet.training.rows import row_lengths, split_rows
from ratchet.training.schedule import accumulation_steps, schedule
from ratchet.training.trainer import RowTrainer
from tests.helpers.commands import command_of
from tests.helpers.experiment import command, preloaded
from tests.helpers.world import curve, make_run, make_trainer, prepared_rows, trl_head_on_cpu

REPO = Path(__file__).parents[2]
PROGRAM = Path(__file__).parents[1] / "helpers" / "train_for_tests.py"
WHOLE: dict[str, Any] = {"max_steps": 12, "eval_steps": 4, "learning_rate": 0.02}
"""The settings of `finished`: five steps are an epoch."""


@pytest.fixture(scope="session")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained round; not to be changed."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "model").symlink_to(model)
    _, config, _ = make_run(folder, **WHOLE)
    train_round(config, 1)
    return folder


def start(folder: Path, model: Path, **training: object) -> tuple[Path, Config, RoundFolder]:
    (folder / "model").symlink_to(model)
    return make_run(folder, **training)  # type: ignore[arg-type]


def round_of(folder: Path) -> tuple[Config, RoundFolder]:
    config = load_config(folder / "config.yaml")
    return config, RunFolder(config.folder).round(1)


def mean_loss(model: Any, rows: list[dict[str, Any]]) -> float:
    """The definition, in plain torch, a row at a time and without padding: mean of -log p over learnt tokens."""
    summed, count = 0.0, 0
    for row in rows:
        with torch.no_grad():
            logp = model(torch.tensor([row["ids"]])).logits[0].log_softmax(-1)
        for at, learnt in enumerate(row["loss_mask"]):
            if learnt:
                summed -= float(logp[at - 1, row["ids"][at]])
                count += 1
    return summed / count


@pytest.mark.numeric
@pytest.mark.slow
def test_the_logged_losses_are_the_defined_ones(finished: Path) -> None:
    config, folder = round_of(finished)
    rows, question_of = prepared_rows(config, folder)
    learnt, dev = split_rows(rows.table, question_of, config.training.dev_fraction, config.seed)
    base = AutoModelForCausalLM.from_pretrained(finished / "model").eval()
    log = curve(folder)
    assert log[0] == {"step": 0, "dev_loss": pytest.approx(mean_loss(base, dev.to_pylist()), rel=1e-5)}
    batch = epoch_order(row_lengths(learnt), 4, config.seed, 0)[:4]
    assert log[1]["loss"] == pytest.approx(mean_loss(base, learnt.take(batch).to_pylist()), rel=1e-5)
    assert log[1]["tokens"] == sum(len(row) for row in learnt.take(batch)["ids"].to_pylist())
    assert [line["step"] for line in log if "loss" in line] == list(range(1, 13))
    assert log[-2]["loss"] < log[1]["loss"] - 0.2


@pytest.mark.slow
@pytest.mark.numeric
def test_micro_batches_do_not_change_the_curve(model: Path, finished: Path, tmp_path: Path) -> None:
    _, config, folder = start(tmp_path, model, **WHOLE, micro_batch=4)
    train_round(config, 1)
    whole = curve(round_of(finished)[1])
    assert len(whole) == 16 and curve(folder) == [pytest.approx(line, rel=1e-4) for line in whole]


@trl_head_on_cpu
def test_the_loss_on_the_cpu_is_trls(finished: Path, tmp_path: Path) -> None:
    config, folder = round_of(finished)
    trainer, table = make_trainer(config, folder, tmp_path)
    inputs = trainer.data_collator(table.slice(0, 3).to_pylist())
    for count in (None, torch.tensor(100)):
        ours = trainer.compute_loss(trainer.model, dict(inputs), num_items_in_batch=count)
        theirs = SFTTrainer.compute_loss(trainer, trainer.model, dict(inputs), num_items_in_batch=count)
        assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)


def run_disturbed(path: Path, disturbance: str) -> subprocess.CompletedProcess[str]:
    """The command of a training that gets a signal; see `PROGRAM`."""
    command = [sys.executable, str(PROGRAM), "--config", str(path)]
    env = preloaded(OMP_NUM_THREADS="1", DISTURB=disturbance)
    return subprocess.run(command, cwd=REPO, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_killed_after_a_checkpoint_it_goes_on_with_the_same_curve(model: Path, finished: Path, tmp_path: Path) -> None:
    path, config, folder = start(tmp_path, model, **WHOLE)
    assert run_disturbed(path, "SIGKILL 5 0").returncode == -signal.SIGKILL and not folder.adapter.exists()
    assert curve(folder)[-1]["step"] == 5
    train_round(config, 1)
    _, whole = round_of(finished)
    # The two runs' settings differ in nothing but their folders.
    assert curve(folder) == [pytest.approx(line, rel=1e-5) for line in curve(whole)]
    ours, theirs = (load_file(f.adapter / "adapter_model.safetensors") for f in (folder, whole))
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-6) for name in theirs)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished, tmp_path / "copy", symlinks=True)
    before = curve(round_of(finished)[1])
    text = (tmp_path / "copy" / "config.yaml").read_text().replace(str(finished), str(tmp_path / "copy"))
    (tmp_path / "copy" / "config.yaml").write_text(text)
    config, folder = round_of(tmp_path / "copy")
    shutil.rmtree(folder.adapter)
    shutil.rmtree(config.folder / "nothing", ignore_errors=True)
    (config.folder / "config.yaml").unlink()  # it names the other folder
    weights = folder.training / "checkpoint-12" / "optimizer.pt"
    weights.write_bytes(weights.read_bytes()[:100])
    made_of = json.loads((folder.training / "training.json").read_text())
    train_round(config, 1)
    assert "checkpoint-12: optimizer.pt is damaged; resuming from" in capsys.readouterr().err
    assert curve(folder) == [pytest.approx(line, rel=1e-5) for line in before]
    assert json.loads((folder.training / "training.json").read_text()) == made_of


@pytest.mark.slow
@pytest.mark.numeric
def test_the_adapter_is_the_one_with_the_lowest_dev_loss(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The losses that are reported are given, since rounding decides which step of a training is its best. Those that
    were measured say of which step the adapter is."""
    reported, measured = {0: 5.0, 1: 3.0, 2: 1.0, 3: 2.0, 4: 1.0, 5: 4.0}, dict[int, float]()
    on_evaluate = TrainingCallback.on_evaluate

    def report(self: TrainingCallback, args: Any, state: Any, control: Any, metrics: Any, **others: Any) -> None:
        measured[state.global_step] = metrics["eval_loss"]
        on_evaluate(self, args, state, control, {"eval_loss": reported[state.global_step]}, **others)

    monkeypatch.setattr(TrainingCallback, "on_evaluate", report)
    _, config, folder = start(tmp_path, model, learning_rate=0.1, max_steps=5, eval_steps=1, warmup_steps=0)
    train_round(config, 1)
    assert {line["step"]: line["dev_loss"] for line in curve(folder) if "dev_loss" in line} == reported
    facts = json.loads((folder.adapter / "training.json").read_text())
    assert (facts["step"], facts["dev_loss"]) == (2, 1.0)
    assert "the adapter after step 2 of 5" in capsys.readouterr().err
    rows, question_of = prepared_rows(config, folder)
    _, dev = split_rows(rows.table, question_of, config.training.dev_fraction, config.seed)
    tuned = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), folder.adapter).eval()
    loss = mean_loss(tuned, dev.to_pylist())
    assert [step for step, other in measured.items() if loss == pytest.approx(other, rel=1e-4)] == [2], measured


@pytest.mark.numeric
@pytest.mark.slow
def test_bfloat16_products_on_a_cpu_learn_the_same_curve_and_are_recorded(
    model: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, config, folder = start(tmp_path, model, **WHOLE, cpu_precision="auto")
    for has_bfloat16 in (False, True):
        monkeypatch.setattr("ratchet.training.lora.computes_bfloat16", lambda has_bfloat16=has_bfloat16: has_bfloat16)
        assert mixes_precision(config.models["agent"], config.training, 1) == has_bfloat16
    train_round(config, 1)
    _, whole = round_of(finished)
    exact, losses = ([line["loss"] for line in curve(one) if "loss" in line] for one in (whole, folder))
    assert losses == pytest.approx(exact, rel=0.02) and losses != exact
    facts = [json.loads((one.adapter / "training.json").read_text()) for one in (whole, folder)]
    assert [one["mixed_precision"] for one in facts] == [False, True]
    weights = load_file(folder.adapter / "adapter_model.safetensors").values()
    assert {one.dtype for one in weights} == {torch.float32}


def test_of_equal_losses_the_first_is_the_best_and_without_losses_the_last(tmp_path: Path) -> None:
    for step, loss in ((5, 1.0), (10, 0.5), (15, 0.5)):
        (tmp_path / f"evaluated-{step}").mkdir()
        (tmp_path / f"evaluated-{step}" / "evaluated.json").write_text(json.dumps({"step": step, "dev_loss": loss}))
    best = EvaluatedAdapters(tmp_path).best()
    assert best is not None and best[0].name == "evaluated-10"
    for path in EvaluatedAdapters(tmp_path).all().values():
        (path / "evaluated.json").write_text(json.dumps({"step": int(path.name[10:]), "dev_loss": None}))
    last = EvaluatedAdapters(tmp_path).best()
    assert last is not None and last[0].name == "evaluated-15"


@pytest.mark.slow
def test_where_the_reward_is_to_choose_training_leaves_a_candidate_and_no_adapter(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, config, folder = start(tmp_path, model, max_steps=4, eval_steps=2, choose_by="reward", dev_fraction=0.0)
    train_round(config, 1)
    assert list(EvaluatedAdapters(folder.training).all()) == [2, 4], "without held-out rows as well"
    assert not folder.adapter.exists() and (folder.candidate / "adapter_model.safetensors").exists()
    assert "`ratchet choose` decides on dev" in capsys.readouterr().err
    train_round(config, 1)
    assert "is complete" in capsys.readouterr().err


def test_the_adapter_loads_in_plain_peft_and_changes_the_model(finished: Path) -> None:
    _, folder = round_of(finished)
    assert {p.name for p in folder.adapter.iterdir()} == {
        "README.md", "training.json", "training_questions.json", "adapter_config.json", "adapter_model.safetensors"
    }  # fmt: skip
    ids = AutoTokenizer.from_pretrained(finished / "model")("Ada Torrin", return_tensors="pt").input_ids
    base = AutoModelForCausalLM.from_pretrained(finished / "model").eval()
    with torch.no_grad():
        plain = base(ids).logits
        tuned = PeftModel.from_pretrained(base, folder.adapter).eval()(ids).logits
        direct = AutoModelForCausalLM.from_pretrained(folder.adapter).eval()(ids).logits
    assert not torch.allclose(plain, tuned, atol=1e-2) and torch.allclose(tuned, direct, atol=1e-5)


def test_the_model_card_has_valid_front_matter_and_the_facts(finished: Path) -> None:
    config, folder = round_of(finished)
    _, front, body = (folder.adapter / "README.md").read_text().split("---\n", 2)
    facts = json.loads((folder.adapter / "training.json").read_text())
    assert yaml.safe_load(front)["base_model"] == Path(config.models["agent"].path).name
    assert yaml.safe_load(front)["license"] == "unknown"
    assert config.models["agent"].path not in body and facts["made_of"]["base model"] in body
    assert "PeftModel.from_pretrained(" in body and "| training questions, own file | unknown |" in body
    assert RESULTS_BEGIN in body and RESULTS_END in body
    assert yaml.safe_load(front)["library_name"] == "peft"
    for fact in (
        f"{facts['dev_loss']:.4f}",
        "r=4, lora_alpha=8",
        "| coordinator |",
        str(facts["rows"]["loss_tokens"]),
        config.run,
    ):
        assert fact in body


def test_again_does_nothing(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, _ = round_of(finished)
    monkeypatch.setattr(recipe, "optimise", lambda *a: pytest.fail("trained again"))
    train_round(config, 1)
    assert "is complete" in capsys.readouterr().err


@pytest.mark.slow
def test_few_questions_train_without_dev_and_keep_the_last_step(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, config, folder = start(tmp_path, model, questions=3, max_steps=50, epochs=2.0)
    train_round(config, 1)
    said = capsys.readouterr().err
    assert "too few questions" in said and "step 4 of 4" in said
    facts = json.loads((folder.adapter / "training.json").read_text())
    assert facts["dev_loss"] is None and facts["step"] == 4
    assert "no rows were held out" in (folder.adapter / "README.md").read_text()


def test_no_kept_trajectories_is_a_clear_error_and_exit_status_2(model: Path, tmp_path: Path) -> None:
    path, _, folder = start(tmp_path, model, questions=2)
    folder.selection.write_text('{"weights": {}, "rule": {}, "questions": []}')
    done = command("train.py", "--config", str(path))
    assert done.returncode == 2 and "no trajectory was kept" in done.stdout and "Traceback" not in done.stdout


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (["q_proj", "embed_tokens"], r"model\.embed_tokens is no linear layer \(Embedding\)"),
        (["q_proj", "lm_head"], "lm_head is the output head"),
        (["q_proj", "v_porj"], r"the model has no layer 'v_porj' \(did you mean 'v_proj'\?\)"),
        (["mlp"], r"model\.layers\.0\.mlp is no linear layer \(LlamaMLP\)"),
        (r".*\.[qv]_porj", "the model has no layer"),
        (r".*(q_proj|embed_tokens)", r"model\.embed_tokens is no linear layer"),
    ],
)
def test_targets_whose_adapter_would_be_lost_are_refused_before_the_first_step(
    targets: str | list[str], said: str, model: Path, tmp_path: Path
) -> None:
    _, config, folder = start(tmp_path, model, lora={"r": 4, "target_modules": targets})
    with pytest.raises(
        UserError, match=rf"training\.lora\.target_modules={re.escape(str(targets))}: .*{said}"
    ) as refusal:
        train_round(config, 1)
    assert "\n" not in str(refusal.value) and not folder.adapter.exists()


def test_steps_and_batches() -> None:
    settings = TrainingConfig(batch_size=8, micro_batch=2, max_steps=100)
    assert accumulation_steps(settings, 2) == 2 and schedule(20, settings, 1)[2:4] == (3, 100)
    assert schedule(20, settings.model_copy(update={"epochs": 2.0}), 1)[2:4] == (3, 6)
    with pytest.raises(UserError, match=r"micro_batch one of 1, 2, 4, 8, or training.batch_size=9"):
        accumulation_steps(settings.model_copy(update={"micro_batch": 3}), 1)
    with pytest.raises(UserError, match=r"on 3 devices: set training.batch_size=6"):
        accumulation_steps(settings, 3)


@pytest.mark.slow
def test_a_diverging_loss_and_a_full_disk_are_errors_with_a_way_out(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, config, _ = start(tmp_path, model)
    with monkeypatch.context() as patch:
        patch.setattr(RowTrainer, "compute_loss", lambda *a, **k: torch.tensor(float("nan"), requires_grad=True))
        with pytest.raises(UserError, match=r"loss is nan.*learning_rate"):
            train_round(config, 1)

    def full(*unused: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SFTTrainer, "_save_checkpoint", full)
    with pytest.raises(UserError, match=r"cannot save a checkpoint.*No space left.*run the same command again"):
        train_round(config, 1)


@pytest.mark.slow
def test_device_cpu_trains_on_the_cpu_of_a_machine_with_several_gpus(model: Path, tmp_path: Path) -> None:
    path, _, _ = start(tmp_path, model)
    words = [sys.executable, "tests/helpers/train_beside_gpus.py", "--config", str(path)]
    done = subprocess.run(words, cwd=REPO, env=preloaded(), capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "cpu 1 cpu 0", done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_four_bits_are_refused_where_nothing_would_use_them() -> None:
    assert TrainingConfig(backend="unsloth", four_bit=True).four_bit
    with pytest.raises(ValueError, match="four_bit: only backend unsloth"):
        TrainingConfig(four_bit=True)


def test_unsloth_without_a_gpu_is_refused_before_it_is_imported(model: Path, tmp_path: Path) -> None:
    path, _, _ = start(tmp_path, model, backend="unsloth")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["train.py", "--config", str(path)])
        with pytest.raises(UserError, match=r"needs an NVIDIA GPU.*training.backend=peft"):
            command_of("train")()
    assert "unsloth" not in sys.modules
