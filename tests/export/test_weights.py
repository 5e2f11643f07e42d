"""Exported weights do what base and adapter do together, in programs that know nothing of Ratchet."""

import json
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from ratchet.commands.models import _with_merged
from ratchet.core.config import ModelConfig, RoleConfig, load_config
from ratchet.core.errors import UserError
from ratchet.export import weights
from ratchet.inference.adapters import adapter_digest
from ratchet.inference.chat_formats import WrapperFormat
from ratchet.inference.serving.specs import server_specs
from ratchet.inference.tokenizer import load_tokenizer
from ratchet.training.adapter import RESULTS_BEGIN, RESULTS_END
from tests.helpers.commands import command_of

main = command_of("export")

Export = Callable[..., str]


@pytest.fixture
def export(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Export:
    """Run the command into tmp_path; returns what it printed."""

    def run(*words: str) -> str:
        main(["--config", str(trained), "--out", str(tmp_path), *words])
        return capsys.readouterr().out

    return run


def logits(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(ids).logits
    return found


@pytest.mark.slow
def test_merged_weights_give_the_logits_of_base_and_adapter(
    trained: Path, run_folder: Path, tmp_path: Path, export: Export
) -> None:
    assert f"written to {tmp_path / 'merged'}" in export("--merged")
    base, merged = trained.parent / "model", tmp_path / "merged"
    tokenizer = AutoTokenizer.from_pretrained(merged)
    ids = tokenizer("Question: who built the harbour?", return_tensors="pt").input_ids
    plain = AutoModelForCausalLM.from_pretrained(base)
    before = logits(plain, ids)
    wanted = logits(PeftModel.from_pretrained(plain, run_folder / "round-1/adapter"), ids)
    found = logits(AutoModelForCausalLM.from_pretrained(merged), ids)
    assert not torch.allclose(before, wanted, atol=1e-2)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    formats = [WrapperFormat.from_tokenizer(load_tokenizer(str(folder))) for folder in (base, merged)]
    assert formats[0].digest == formats[1].digest, "the same ids for the same texts"
    card = (merged / "README.md").read_text()
    assert yaml.safe_load(card.split("---\n")[1])["library_name"] == "transformers" and "PeftModel" not in card


@pytest.mark.slow
def test_served_merged_weights_are_compared_with_the_adapter_first(trained: Path, run_folder: Path) -> None:
    """In float32 every greedy token is equal; the base model's own weights are refused."""
    config = load_config(trained)
    specs = server_specs(config.model_copy(update={"models": {"agent": vllm(config.models["agent"])}}), None)
    adapter = run_folder / "round-1/adapter"
    (run_folder / "merged/earlier").mkdir(parents=True)
    [spec], digest = _with_merged(config, specs, adapter)
    assert [path.name for path in (run_folder / "merged").iterdir()] == [digest], "one model's weights at most"
    assert digest == adapter_digest(adapter) and not spec.lora_rank and spec.served_name == specs[0].served_name
    model = weights.open_trained_model(adapter, "agent", config.models["agent"], "x")
    said = weights.check_merged(model, Path(spec.model.path), "float32")
    equal, total = re.findall(r"(\d+) of (\d+) greedy", said)[0]
    assert equal == total
    with pytest.raises(UserError, match="greedy tokens differ from those with the adapter"):
        weights.check_merged(model, trained.parent / "model", "float32")
    frozen = config.system.model_copy(update={"roles": {"answerer": RoleConfig(trainable=False)}})
    with pytest.raises(UserError, match="the role answerer is played without the adapter"):
        _with_merged(config.model_copy(update={"system": frozen}), specs, adapter)


def vllm(model: ModelConfig) -> ModelConfig:
    return model.model_copy(update={"engine": "vllm"})


@pytest.mark.slow
@pytest.mark.parametrize("targets", [["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head", "q_proj"]])
def test_an_adapter_of_a_tied_embedding_or_head_is_merged_into_it_alone(
    targets: list[str], trained: Path, tmp_path: Path, export: Export
) -> None:
    plain = AutoModelForCausalLM.from_pretrained(trained.parent / "model")
    assert plain.config.tie_word_embeddings
    torch.manual_seed(1)
    with warnings.catch_warnings(category=UserWarning, action="ignore"):  # PEFT's own, of the very fault
        adapted = get_peft_model(plain, LoraConfig(r=2, target_modules=targets, task_type="CAUSAL_LM"))
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.3)
    adapted.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    export("--adapter", str(tmp_path / "adapter"), "--merged", "--dtype", "float32")
    ids = torch.arange(20)[None]
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(merged, ids), logits(adapted, ids), atol=1e-5, rtol=1e-5)


def test_layers_that_only_the_weights_name_are_not_lost_in_silence(
    run_folder: Path, tmp_path: Path, export: Export
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run_folder / "round-1/adapter", copy)
    config = json.loads((copy / "adapter_config.json").read_text())
    (copy / "adapter_config.json").write_text(json.dumps({**config, "target_modules": ["q_proj"]}))
    with pytest.raises(UserError, match=r"disagree about the layer base_model\.model\.model\.layers\.0\.mlp"):
        export("--adapter", str(copy), "--merged")


def test_a_precision_of_ones_own_is_rounded_once(tmp_path: Path, export: Export) -> None:
    export("--merged", "--dtype", "bfloat16")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "merged").dtype == torch.bfloat16
    with pytest.raises(UserError, match="was exported with other dtype; delete it to export again"):
        export("--merged", "--dtype", "float16")


def test_the_adapters_card_holds_code_that_runs_and_no_local_path(
    trained: Path, tmp_path: Path, export: Export, capsys: pytest.CaptureFixture[str]
) -> None:
    export("--adapter-only", "--base-id", "org/tiny")
    folder = tmp_path / "adapter"
    for file in ("adapter_config.json", "training.json", "README.md"):
        assert str(trained.parent) not in (folder / file).read_text(), file
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == "org/tiny"
    card = (folder / "README.md").read_text()
    assert "which are in `prompts/`" in card
    assert {path.suffix for path in (folder / "prompts").iterdir()} == {".txt"}
    [code] = card.split("```python\n")[1:]
    code = (
        code.partition("```")[0]
        .replace("org/tiny", str(trained.parent / "model"))
        .replace("path/to/adapter", str(folder))
    )
    exec(compile(code.replace("max_new_tokens=64", "max_new_tokens=2"), "the card", "exec"), {})
    assert capsys.readouterr().out


def test_results_of_a_later_evaluation_reach_a_card_that_was_exported_before(
    trained: Path, run_folder: Path, tmp_path: Path, export: Export
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run_folder / "round-1/adapter", copy)
    export("--adapter", str(copy), "--adapter-only")
    card = copy / "README.md"
    card.write_text(
        card.read_text().replace(f"{RESULTS_BEGIN}\n{RESULTS_END}", f"{RESULTS_BEGIN}\nbetter\n{RESULTS_END}")
    )
    export("--adapter", str(copy), "--adapter-only")
    assert f"{RESULTS_BEGIN}\nbetter\n{RESULTS_END}" in (tmp_path / "adapter/README.md").read_text()


def test_the_half_written_files_of_a_killed_export_are_removed(tmp_path: Path, export: Export) -> None:
    export("--adapter-only")
    whole = sorted((tmp_path / "adapter").rglob("*"))
    for name in (".README.md.60261ad7.tmp", ".training.json.1f2e3d4c.tmp"):
        (tmp_path / "adapter" / name).write_text("hal")
    export("--adapter-only")
    assert sorted((tmp_path / "adapter").rglob("*")) == whole


@pytest.mark.slow
def test_an_export_that_was_killed_is_made_again_and_a_complete_one_is_not(
    tmp_path: Path, export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        original = weights._merge

        def killed(model: weights.TrainedModel, folder: Path, dtype: str) -> None:
            original(model, folder, dtype)
            raise KeyboardInterrupt

        patch.setattr(weights, "_merge", killed)
        with pytest.raises(KeyboardInterrupt):
            export("--merged")
    assert not (tmp_path / "merged").exists()
    export("--merged")
    assert not list(tmp_path.glob(".*.tmp"))
    monkeypatch.setattr(weights, "_merge", lambda *_: pytest.fail("merged again"))
    export("--merged")


def test_an_adapter_of_another_model_is_refused(
    trained: Path, run_folder: Path, tmp_path: Path, export: Export
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run_folder / "round-1/adapter", copy)
    facts = json.loads((copy / "training.json").read_text())
    facts["made_of"]["base model"] = "0123"
    (copy / "training.json").write_text(json.dumps(facts))
    with pytest.raises(UserError, match="was trained for another base model or precision"):
        export("--adapter", str(copy), "--merged")
    (copy / "training.json").unlink()
    config = json.loads((trained.parent / "model/config.json").read_text())
    other = tmp_path / "other"
    AutoModelForCausalLM.from_config(
        AutoModelForCausalLM.from_pretrained(trained.parent / "model").config.__class__(
            **{**config, "num_hidden_layers": 1}
        )
    ).save_pretrained(other)
    with pytest.raises(UserError, match=r"has no layer base_model\.model\.model\.layers\.1\."):
        main(["--config", str(trained), "--set", f"models.agent.path={other}", "--adapter", str(copy), "--merged"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to export: name --adapter-only"),
        (["--dataset", "--adapter", "x"], "exports the data of a round"),
        (["--merged", "--round", "7"], "round-7/adapter/adapter_config.json: cannot read"),
    ],
)
def test_options_that_do_not_go_together_are_refused(export: Export, words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        export(*words)
