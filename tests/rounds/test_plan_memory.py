"""The memory and calls of a plan: by hand on real models' shapes, against what a step allocates, as a command."""

from __future__ import annotations

import json
import re
import shlex
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM, MixtralConfig, Qwen2Config

from ratchet.agents.core.system import load_system
from ratchet.commands.model import serve_models
from ratchet.commands.plan import main
from ratchet.core.config import LoraConfig, SystemConfig, load_config
from ratchet.core.errors import UserError
from ratchet.core.files import write_json, write_jsonl
from ratchet.core.records import Conversation, ModelCall, Question, Span, Trajectory
from ratchet.inference.footprint import footprint
from ratchet.rounds.plan.memory import Step
from ratchet.rounds.plan.usage import assumed_use
from ratchet.rounds.records import Entry
from ratchet.training.checkpointing import CHECKPOINTING
from ratchet.training.lora import add_lora, take_inputs_as_they_are
from ratchet.training.memory import Activations
from tests.agents.test_budgets import TABLE
from tests.helpers.configs import SPLITS, write_config
from tests.helpers.model_shapes import FALCON3_10B, QWEN25_7B, QWEN25_14B, save_shape
from tests.helpers.pages import ROOT
from tests.helpers.stored import store


def step_of(folder: Path, shape: dict[str, Any]) -> Step:
    """In bfloat16, on one GPU."""
    path = save_shape(folder, shape)
    size = footprint(path, None, "bfloat16")
    return Step(size, activations(AutoConfig.from_pretrained(path).get_text_config()))


def activations(shape: Any, dtype: torch.dtype = torch.bfloat16, tiled_head: bool = True) -> Activations:
    found = Activations.of(shape, 16, dtype, tiled_head)
    assert found is not None
    return found


def test_a_shape_that_the_formula_does_not_describe_has_none() -> None:
    assert Activations.of(MixtralConfig(), 16, torch.bfloat16, tiled_head=True) is None


def test_training_qwen_7b_by_hand(tmp_path: Path) -> None:
    """The paper's: LoRA of rank 16, one row of 16,000 tokens at a time, bfloat16."""
    one = step_of(tmp_path, QWEN25_7B).memory(16_000, 2_000)
    assert one.weights == 7_615_616_512 * 2
    # A layer's inputs and outputs: q and o 7168 each, k and v 4096 each, gate, up and down 22528 each.
    assert one.adapter == 16 * 16 * 28 * (2 * 7168 + 2 * 4096 + 3 * 22528)
    assert one.residuals == 28 * 16_000 * ((3584 + 3584) * 2 + 4 * 28)
    assert one.layer == 16_000 * (
        2 * (4 * 18944 + 4 * 3584 + 2 * 3584 + 2 * 512 + 7 * 16)
        + 4 * 28
        + 8
        + 4 * 3584
        + 2 * 2 * 18944
        + 2 * 18944
        + 8 * 3584
    )
    assert one.head == 2 * 2000 * 32_768 + 2000 * 3584 * 6
    assert one.total == one.weights + one.adapter + one.residuals + one.layer == pytest.approx(28.0e9, rel=0.01)


def test_what_fits_a_gpu_and_what_sharding_saves(tmp_path: Path) -> None:
    fits = {}
    for name, shape in (("7b", QWEN25_7B), ("14b", QWEN25_14B), ("10b", FALCON3_10B)):
        step = step_of(tmp_path / name, shape)
        fits[name] = most = step.max_tokens(80e9)
        assert step.memory(most, most).total <= 80e9 < step.memory(most + 1, most + 1).total
        assert step.max_tokens(10e9) == 0
        sharded, alone = replace(step, shards=8).memory(16_000, 16_000), step.memory(16_000, 16_000)
        # Two layers are whole at a time, and the output head all the time.
        head = 2 * shape["vocab_size"] * shape["hidden_size"]
        layers = 2 * alone.weights // shape["num_hidden_layers"]
        assert sharded.weights == alone.weights // 8 + layers + head
        assert (sharded.residuals, sharded.layer, sharded.head) == (alone.residuals, alone.layer, alone.head)
        kept = replace(step, checkpointing=False).memory(16_000, 16_000)
        assert kept.total > 80e9 > alone.total
    assert fits["7b"] > fits["10b"] > fits["14b"] > 16_000


class Peak(TorchDispatchMode):
    """The most bytes that all tensors had together."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known: Any = weakref.WeakSet()

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage not in self.known:
            self.known.add(storage)
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self.remove, storage.nbytes())

    def remove(self, size: int) -> None:
        self.now -= size

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf)
        return out


def allocated(config: Qwen2Config, dtype: torch.dtype, tokens: int, learnt: int, checkpointing: bool) -> int:
    """The peak of two training steps, as training/trainer.py computes them on a CPU."""
    model = add_lora(AutoModelForCausalLM.from_config(config, dtype=dtype), LoraConfig(), 0).train()
    take_inputs_as_they_are(model)
    if checkpointing:
        model.gradient_checkpointing_enable(CHECKPOINTING)
        model.enable_input_require_grads()
    optimiser = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad])
    ids = torch.zeros((1, tokens), dtype=torch.long)
    positions = torch.arange(tokens - learnt, tokens)
    peak = Peak()
    for weight in model.parameters():
        peak.add(weight.data)
    with peak:
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
                logits = model(input_ids=ids, use_cache=False, logits_to_keep=positions).logits
                loss = cross_entropy(logits.flatten(0, 1).float(), ids[0, :learnt], reduction="sum")
            del logits
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
    return peak.most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inner", "vocabulary", "learnt", "dtype", "checkpointing"),
    [
        (1024, 500, 50, "float32", True),
        (1024, 500, 50, "bfloat16", True),
        (512, 500, 50, "bfloat16", False),
        (512, 20_000, 200, "float32", True),
    ],
)
def test_the_formula_against_what_a_step_allocates(
    inner: int, vocabulary: int, learnt: int, dtype: str, checkpointing: bool, tmp_path: Path
) -> None:
    config = Qwen2Config(
        hidden_size=256,
        intermediate_size=inner,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=vocabulary,
        tie_word_embeddings=False,
    )
    config.save_pretrained(tmp_path)
    kind = getattr(torch, dtype)
    size = footprint(str(tmp_path), None, dtype)
    step = Step(size, activations(config, kind, tiled_head=False), checkpointing)
    memory = step.memory(400, learnt)
    there = allocated(config, kind, 400, learnt, checkpointing)
    assert 0.95 < memory.total / there < 1.2


def trajectory(number: int) -> Trajectory:
    call = ModelCall(
        role="answerer", conversation=0, start=2, end=22, text="x", parse="free", finish_reason="stop",
        prompt_tokens=2, new_tokens=20, at=0.0, seconds=4.0,
    )  # fmt: skip
    spans = (Span(start=0, end=2, author="user"), Span(start=2, end=22, author="assistant", sampled=True))
    talk = Conversation(role="answerer", model="agent", trainable=True, ids=(1,) * 22, spans=spans)
    return Trajectory(
        key=f"t{number}", question_id="q0", system="mrag", policy="base", sample=number, seed=0, status="finished",
        answer="x", events=(call,), conversations=(talk,), seconds=5.0,
    )  # fmt: skip


def experiment(folder: Path) -> Path:
    """A config with the shapes of the paper's agents and judge, and no weights, corpus or run."""
    for name in SPLITS:
        write_jsonl(folder / f"{name}.jsonl", [Question(id=f"{name}{n}", text=f"Who is {n}?") for n in range(5)])
    models = {
        "agent": {"path": save_shape(folder / "7b", QWEN25_7B), "engine": "vllm"},
        "judge": {"path": save_shape(folder / "14b", QWEN25_14B), "engine": "vllm"},
    }
    return write_config(folder, models=models, rewards=None, sampling={"samples": 4, "concurrency": 8})


PLANNED = sorted(path for kind in ("papers", "current") for path in (ROOT / "configs" / kind).glob("*.yaml"))


@pytest.mark.parametrize("path", PLANNED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_papers_configs_and_todays_are_planned_before_any_download(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_network(*_: object) -> None:
        raise AssertionError("the plan asks the network")

    monkeypatch.setattr("socket.socket.connect", no_network)
    main(["--config", str(path), "--questions", "100", "--held-out", "20"])
    said = capsys.readouterr().out
    assert "serve agent" in said and "micro_batch" in said
    if path.parent.name == "current":
        assert "DOES NOT FIT" not in said
        return
    text = path.read_text()
    own, without, thinking = re.findall(r"^  (?:# )?agent: .*$", text, re.MULTILINE)
    for line, expected in ((without, False), (thinking, True)):
        swapped = tmp_path / f"{expected}.yaml"
        swapped.write_text(text.replace(own, line.replace("# ", "", 1)))
        agent = load_config(swapped).models["agent"]
        assert (agent.path, agent.thoughts.enabled) == ("Qwen/Qwen3-8B", expected)


def test_the_page_on_qwen3_shows_what_its_commands_print(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs/guides/qwen3.md").read_text()
    for line in page.splitlines():
        words = shlex.split(line, comments=True) if line.startswith("ratchet ") else []
        if words[1:2] == ["plan"]:
            main(words[2:])
        elif "--dry-run" in words:
            with pytest.raises(SystemExit) as status:
                serve_models(words[2:], "ratchet serve-models")
            assert status.value.code == 0
    printed = capsys.readouterr().out.splitlines()
    shown = [line for block in re.findall(r"```text\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    assert len(shown) > 8 and [line for line in shown if line not in printed] == []


def test_a_dry_run_without_models_is_by_stage_as_the_loop_serves_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = {"agent": QWEN25_7B, "answerer": FALCON3_10B, "judge": QWEN25_14B}
    paths = {f"models.{name}.path": save_shape(tmp_path / name, shape) for name, shape in shapes.items()}
    others = {"index.encoder.device": "cpu", "embedder.device": "cpu", "run": tmp_path / "run"}
    sets = [word for key, value in {**paths, **others}.items() for word in ("--set", f"{key}={value}")]
    words = ["--config", str(ROOT / "configs/papers/mrag.yaml"), *sets, "--dry-run", "--gpu", "A100-80"]
    with pytest.raises(SystemExit) as status:
        serve_models(words, "ratchet serve-models")
    assert status.value.code == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if line.endswith("):")]
    assert shown == [
        "agent, answerer (sample; choose: sample; evaluate: sample):",
        "judge (score and select; choose; evaluate):",
    ]
    with pytest.raises(UserError, match="GB too much"):  # the servers of one command are up together
        serve_models([*words, "--", "ratchet", "evaluate"], "ratchet serve-models")


def test_what_is_not_known_is_said_and_the_arithmetic_of_memory_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = experiment(tmp_path)
    main(["--config", str(path)])
    said = capsys.readouterr().out
    assert "not built" in said and "nan" not in said
    # 57,344 bytes a token x 32,000 tokens; the GPU less 3%, weights, two adapters and vLLM's own.
    assert "57,344 bytes a token x 32,000 tokens (models.agent.max_context) = 1.8 GB" in said
    assert "serve judge" in said and "DOES NOT FIT" not in said
    main(["--config", str(path), "--gpu-gb", "24", "--gpus", "8"])
    said = capsys.readouterr().out
    assert "DOES NOT FIT a GPU of 24.0 GB: tensor-parallel-size" in said
    assert "DOES NOT FIT one GPU of 24.0 GB: fits with FSDP" in said


@pytest.mark.slow
def test_every_judge_call_and_every_assumption_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = experiment(tmp_path)
    main(["--config", str(path), "--questions", "1000"])
    said = capsys.readouterr().out
    # Correctness: 10 nuggets x 5 runs, and 5 calls that draw them for 4 samples; faithfulness: claims and their check.
    assert "1,000 questions x 4 samples = 4,000 trajectories x (51.2 correctness + 10.0 faithfulness)" in said
    assert "= 245,000 judge calls" in said
    # Mrag's seven agents, its coordinator eight times, its searcher six: 20 calls of 150 new tokens.
    assert "4,000 trajectories: 80,000 calls, 12,000,000 new tokens" in said
    assert "calls of a trajectory (mrag): 20.0, assumed: 512 tokens a passage" in said
    # A turn shows the searcher 2 passages and 200 tokens; 500 of instructions and all former turns are in the cache.
    assert "searcher (agent): 6.0 calls, 5,159 prompt tokens (3,935 cached), 150 new; conversations of 8,744" in said
    assert "assumed: 10 nuggets, 5 runs" in said
    # 3 of the 4 samples at most, each with a conversation of each of mRAG's eight roles, of the 900 not held out.
    assert "5,000 steps x batch of 128 (at most: 29.6 passes over 21,600 rows, if 3 trajectories" in said
    settings = ("--set", "training.epochs=2", "--set", "training.choose_by=reward")
    main(["--config", str(path), "--questions", "1000", *settings])
    # No question is held out: 2 x ceil(24,000 / 128).
    said = capsys.readouterr().out
    assert "376 steps x batch of 128 (at most: 2 passes over 24,000 rows, if 3 trajectories of each question" in said


@pytest.mark.parametrize(("name", "settings"), sorted({(name, json.dumps(settings)) for name, settings, *_ in TABLE}))
def test_the_calls_that_are_assumed_are_among_those_that_a_system_makes(name: str, settings: str) -> None:
    plays = [calls for other, own, _, calls, _ in TABLE if (other, json.dumps(own)) == (name, settings)]
    use = assumed_use(load_system(SystemConfig(name=name, settings=json.loads(settings))))
    assert min(plays) <= use.calls <= max(plays)


def test_hours_follow_from_tokens_and_what_is_given_published_or_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = experiment(tmp_path)

    def hours(*options: str) -> list[str]:
        main(["--config", str(path), "--questions", "1000", *options])
        return re.findall(r"^sample +4,000 *([\d.,]*)$", capsys.readouterr().out, re.MULTILINE)

    # 20 calls of 150 new tokens, and 20,384 prompt tokens that are in no cache, of 7.6 billion parameters
    expected = 4000 * (20 * 150 + 20_384) * 7_615_616_512 / 7e9 / 3600
    assert hours("--tokens-per-second", "10000") == hours("--gpu", "a100-80") == [f"{expected / 10_000:.2f}"]
    assert hours("--gpu", "H100") == [f"{expected / 19_000:.2f}"] and hours("--gpu", "RTX 4090") == [""]
    run = tmp_path / "run"
    store(run / "round-1" / "trajectories", [trajectory(n) for n in range(10)])
    entry = Entry(
        round=1, stage="sample", member="", inputs={}, outputs={}, facts={"trajectories_an_hour": 1000.0},
        began="2026-11-23T10:00:00+00:00", seconds=72.0, machine="node7",
    )  # fmt: skip
    write_jsonl(run / "ledger.jsonl", [entry])
    main(["--config", str(path), "--questions", "1000"])
    said = capsys.readouterr().out
    assert re.search(r"^sample +4,000 +4\.00 +0\.02$", said, re.MULTILINE), "by the rate, not by the last command"
    assert "(measured by the run's sampling)" in said


def test_four_bits_are_counted(tmp_path: Path) -> None:
    step = step_of(tmp_path, QWEN25_7B)
    saved = step.size.linear_parameters * (2 - 4.25 / 8)
    assert step.weights - replace(step, four_bit=True).weights == pytest.approx(saved)


def test_what_a_run_measured_stands_beside_and_replaces_assumptions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = experiment(tmp_path)
    store(tmp_path / "run" / "round-1" / "trajectories", [trajectory(n) for n in range(10)])
    write_json(tmp_path / "index" / "manifest.json", {"documents": 10})
    (tmp_path / "index" / "postings").write_bytes(b"x" * 1_000_000)
    entry = Entry(
        round=1, stage="sample", member="", inputs={}, outputs={}, facts={"trajectories": 10},
        began="2026-11-23T10:00:00+00:00", seconds=3600.0, machine="node7",
    )  # fmt: skip
    write_jsonl(tmp_path / "run" / "ledger.jsonl", [entry])
    main(["--config", str(path), "--questions", "1000", "--documents", "14_000_000", "--memory-gb", "100"])
    said = capsys.readouterr().out
    assert "1.0 calls, 2 prompt tokens (0 cached), 20 new; conversations of 22" in said
    assert "measured on 10 trajectories of round 1" in said and ": 4,000 calls, 80,000 new tokens" in said
    assert "took 1.00 hours on node7, servers' start included, 10 trajectories" in said
    bytes_there = sum(file.stat().st_size for file in (tmp_path / "index").iterdir())
    assert f"one node holds {100e9 / (bytes_there / 10):,.0f} documents" in said


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = experiment(tmp_path)
    with pytest.raises(UserError, match=r"nowhere: cannot tell its size"):
        main(["--config", str(path), "--set", "models.judge.path=nowhere"])
