"""`ratchet plan`: memory, calls and tokens of every stage and model, hours; and the memory by stage of a dry run."""

import json
import re
from pathlib import Path

import pytest

from ratchet.agents.core.system import load_system
from ratchet.core.config import SystemConfig, load_config
from ratchet.core.errors import UserError
from ratchet.core.files import write_json, write_jsonl
from ratchet.core.records import Conversation, ModelCall, Question, Score, Span, Trajectory
from ratchet.rewards.nuggets import NuggetSet
from ratchet.rewards.store import record_settings, score_file
from ratchet.rounds.plan import assumed_use
from ratchet.rounds.records import Entry
from tests.agents.test_budgets import TABLE
from tests.helpers.commands import command_of
from tests.helpers.configs import SPLITS, write_config
from tests.helpers.model_shapes import FALCON3_10B, QWEN25_7B, QWEN25_14B, save_shape
from tests.helpers.pages import ROOT, blocks, commands
from tests.helpers.stored import store

main = command_of("plan")
serve_models = command_of("models", "serve")


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


def said_of(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """The plan, with single spaces."""
    main(["--config", str(path), *options])
    return re.sub(" +", " ", capsys.readouterr().out)


PLANNED = sorted(path for kind in ("papers", "current") for path in (ROOT / "configs" / kind).glob("*.yaml"))


@pytest.mark.parametrize("path", PLANNED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_papers_configs_and_todays_are_planned_before_any_download(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_network(*_: object) -> None:
        raise AssertionError("the plan asks the network")

    monkeypatch.setattr("socket.socket.connect", no_network)
    main(["--config", str(path), "--questions", "100", "--dev", "20", "--test", "20"])
    said = capsys.readouterr().out
    assert "for agent (" in said and "micro_batch" in said and len(said.splitlines()) < 45, "more than a screen"
    if path.parent.name == "current":
        assert "DOES NOT FIT" not in said and "do not fit" not in said
        return
    text = path.read_text()
    own, without, thinking = re.findall(r"^  (?:# )?agent: .*$", text, re.MULTILINE)
    for line, expected in ((without, False), (thinking, True)):
        swapped = tmp_path / f"{expected}.yaml"
        swapped.write_text(text.replace(own, line.replace("# ", "", 1)))
        agent = load_config(swapped).models["agent"]
        assert (agent.path, agent.thoughts.enabled) == ("Qwen/Qwen3-8B", expected)


def test_the_page_on_large_runs_shows_what_its_commands_print(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    page = ROOT / "docs/guides/large-runs.md"
    for words in commands(page):
        if words[1:2] == ["plan"] and "--config" in words:
            main(words[2:])
    printed = [line.strip() for line in capsys.readouterr().out.splitlines()]
    shown = [line.strip() for block in blocks(page, "text") for line in block.splitlines()]
    assert len(shown) >= 6 and [line for line in shown if line not in printed] == []


@pytest.mark.slow
def test_a_dry_run_without_models_is_by_stage_as_the_loop_serves_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = {"agent": QWEN25_7B, "answerer": FALCON3_10B, "judge": QWEN25_14B}
    paths = {f"models.{name}.path": save_shape(tmp_path / name, shape) for name, shape in shapes.items()}
    others = {"index.encoder.device": "cpu", "embedder.device": "cpu", "run": tmp_path / "run"}
    sets = [word for key, value in {**paths, **others}.items() for word in ("--set", f"{key}={value}")]
    words = ["--config", str(ROOT / "configs/papers/mrag.yaml"), *sets, "--dry-run", "--gpu", "A100-80"]
    serve_models(words)
    shown = [line for line in capsys.readouterr().out.splitlines() if line.endswith("):")]
    assert shown == [
        "agent, answerer (sample; choose: sample; evaluate: sample):",
        "judge (score and select; choose; evaluate):",
    ]
    with pytest.raises(UserError, match="GB too much"):  # the servers of one command are up together
        serve_models([*words, "--", "ratchet", "evaluate"])


def test_what_does_not_fit_and_what_is_not_known_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = experiment(tmp_path)
    said = said_of(path, capsys)
    assert "not built" in said and "nan" not in said and "DOES NOT FIT" not in said
    # By hand, in GB: 2 x 7.616 of weights, two adapters 0.161, 32,000 x 57,344 bytes 1.835, and vLLM's 3 + 1.5 + 0.6.
    assert "+ keys and values of 32000 tokens 1.8 GB = 22.3 GB" in said
    assert "agent (sample; evaluate: sample):" in said and "judge (score and select; evaluate):" in said
    said = said_of(path, capsys, "--gpu-gb", "24", "--gpus", "8")
    assert re.search(r"the servers do not fit GPU \d \(24\.0 GB", said) and "tensor-parallel-size" in said
    assert "DOES NOT FIT a GPU of 24 GB: with FSDP on 8 GPUs" in said
    with pytest.raises(UserError, match=r"nowhere: no such model folder"):
        said_of(path, capsys, "--set", "models.judge.path=nowhere")


def test_a_teacher_does_its_share_of_the_sampling(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    teacher = ("--set", "sampling.teacher={model: judge, samples: 1}")
    said = said_of(experiment(tmp_path), capsys, "--questions", "1000", *teacher)
    assert "sample agent 4,000 24,000 60,000 43 9 " in said and "judge 20,000 14 3 " in said


def test_samples_of_a_curriculum_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    led = ("--set", "sampling.curriculum={searcher: gold_searches, coordinator: gold_searches}")
    said = said_of(experiment(tmp_path), capsys, "--questions", "1000", *led)
    assert "sample agent 5,000 30,000 100,000" in said and "4 samples, and at most 1 of the curriculum" in said


@pytest.mark.slow
def test_every_call_and_every_assumption_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = experiment(tmp_path)
    said = said_of(path, capsys, "--questions", "1000")
    # Mrag's seven agents, its coordinator eight times, its searcher six: 20 calls of 150 new tokens, and together
    # 20 x 200 prompt tokens that are in no cache, and documents of 512: 6 x 2 to the searcher, 4 to the coordinator, 4
    # to the answerer.
    assert "sample agent 4,000 24,000 80,000 57 12" in said
    assert "assumed: 20.0 (coordinator 8, planner 1, searcher 6," in said
    # Correctness: 10 nuggets x 5 runs of 500 shared tokens, 60 a nugget and 50 new ones, and 5 calls that draw them for
    # all samples of a question. Faithfulness: 5 lists of 600 tokens of claims and 5 of 500 of verdicts, of 4 documents.
    assert "score and select judge 4,000 245,000 39 35" in said
    # 1.1 of the samples, each with a conversation of each of mRAG's eight roles, of the 900 not held out; each is an
    # eighth of 8 x 500 tokens of instructions, 20 x (200 + 150) of turns and 20 x 512 of passages.
    assert "train: 5,000 steps x 128 rows x 2,655 tokens (81 passes over 7,920 rows, 1.1 kept of a question)" in said
    # No question is held out: 2 x ceil(8,800 / 128).
    settings = ("--set", "training.epochs=2", "--set", "training.choose_by=reward")
    said = said_of(path, capsys, "--questions", "1000", *settings)
    assert "train: 138 steps x 128 rows x 2,655 tokens (2 passes over 8,800 rows" in said
    # dev and test have sizes of their own, and nuggets are drawn once for all arms: 2 arms x 60 + 5.
    said = said_of(path, capsys, "--questions", "1000", "--dev", "10", "--test", "200")
    assert re.search(r"^ ?evaluate judge 400 25,000 ", said, re.MULTILINE), said


def test_lists_of_nuggets_and_further_runs_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fewer = ("--set", "rewards.nuggets_per_call=10", "--set", "rewards.runs={least: 2, most: 5}")
    said = said_of(experiment(tmp_path), capsys, "--questions", "1000", "--test", "200", *fewer)
    # 2.6 runs of a list, of claims and of their verdicts, and for a question the nuggets of five.
    assert "score and select judge 4,000 36,200" in said
    # An evaluation has five runs of everything.
    assert re.search(r"^ ?evaluate judge 400 7,000 ", said, re.MULTILINE), said


@pytest.mark.parametrize(("name", "settings"), sorted({(name, json.dumps(settings)) for name, settings, *_ in TABLE}))
def test_the_calls_that_a_system_declares_are_among_those_that_it_makes(name: str, settings: str) -> None:
    plays = [calls for other, own, _, calls, _ in TABLE if (other, json.dumps(own)) == (name, settings)]
    use = assumed_use(load_system(SystemConfig(name=name, settings=json.loads(settings))), 512)
    assert min(plays) <= use.calls <= max(plays)


@pytest.mark.slow
def test_hours_follow_from_tokens_and_rates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = experiment(tmp_path)

    def hours(*options: str) -> list[str]:
        said = said_of(path, capsys, "--questions", "1000", *options)
        return re.findall(r"^ ?sample agent 4,000 24,000 80,000 57 12 ?([\d., to]*?) ?$", said, re.MULTILINE)

    def expected(prompt: float, new: float) -> str:
        """Of 20 calls of 150 new tokens, and 14,240 prompt tokens that are in no cache, of 7.6 billion parameters."""
        return f"{4000 * (14_240 / prompt + 20 * 150 / new) * 7_615_616_512 / 7e9 / 3600:.1f}"

    assert hours("--tokens-per-second", "10000", "5000") == [expected(10_000, 5_000)]
    assert hours("--gpu", "a100-80") == [f"{expected(13_700, 10_900)} to {expected(11_300, 6_400)}"]
    assert len(hours("--gpu", "H200")[0].split(" to ")) == 2 and hours("--gpu", "RTX 4090") == [""]
    # 4 operations a parameter: at 36 to 48% of 989e12 a second.
    said = said_of(path, capsys, "--questions", "1000", "--gpu", "H100")
    trained = 5000 * 128 * 2655 * 4 * 7_615_616_512 / 989e12 / 3600
    assert re.search(rf"^ ?train agent 1,699 {trained / 0.48:.0f} to {trained / 0.36:.0f} ?$", said, re.MULTILINE), said


def test_what_a_run_measured_stands_beside_and_replaces_assumptions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = experiment(tmp_path)
    store(tmp_path / "run" / "round-1" / "trajectories", [trajectory(n) for n in range(10)])
    write_json(tmp_path / "index" / "manifest.json", {"documents": 10})
    (tmp_path / "index" / "postings").write_bytes(b"x" * 1_000_000)
    entry = Entry(
        round=1, stage="sample", member="", inputs={}, outputs={}, facts={"trajectories_an_hour": 1000.0},
        began="2026-11-23T10:00:00+00:00", seconds=72.0, machine="node7",
    )  # fmt: skip
    write_jsonl(tmp_path / "run" / "ledger.jsonl", [entry])
    said = said_of(path, capsys, "--questions", "500000", "--documents", "14_000_000")
    assert "calls of a trajectory, measured on 10 trajectories of round-1: 1.0 (answerer 1)" in said
    # By the rate, not by the last command: 2,000,000 trajectories of 2 prompt and 20 new tokens.
    assert re.search(r"^ ?sample agent 2,000,000 2,000,000 4 40 2,000 0\.02 ?$", said, re.MULTILINE)
    assert "(measured by the run's sampling, " in said
    each = sum(file.stat().st_size for file in (tmp_path / "index").iterdir()) / 10
    assert f"14,000,000 documents x {each:,.0f} bytes: 1.4e+03 GB of main memory" in said


def test_what_another_run_measured_of_its_judge_and_its_selection_is_planned_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, pilot = experiment(tmp_path), tmp_path / "pilot"
    with pytest.raises(UserError, match="no run folder with trajectories of mrag"):
        said_of(path, capsys, "--from", str(pilot))
    store(pilot / "round-1" / "trajectories", [trajectory(n) for n in range(20)])
    scores, settings = pilot / "round-1" / "scores", {"runs": 5}
    verdicts = ({"part": "nugget", "tokens": [500, 400, 60]}, {"part": "nugget", "tokens": [500, 450, 40]})
    scored = [
        Score(trajectory=f"t{n}", name="correctness", value=1.0, runs=(1.0, 1.0), verdicts=verdicts) for n in range(20)
    ]
    scored.insert(0, scored[0].model_copy(update={"runs": (1.0,), "verdicts": verdicts[:1]}))  # before its second run
    record_settings(scores, "correctness", settings)
    write_jsonl(score_file(scores, "correctness", settings), scored)
    drawn = ({"part": "nuggets", "tokens": [300, 0, 700]},)
    write_jsonl(pilot / "nuggets" / "a.jsonl", [NuggetSet(key="k", question_id="q0", nuggets=(), verdicts=drawn)])
    entry = Entry(
        round=1, stage="score", member="", inputs={}, outputs={}, machine="node7", seconds=1.0,
        facts={"kept": 30, "kept_questions": 20, "questions": 20}, began="2026-11-23T10:00:00+00:00",
    )  # fmt: skip
    write_jsonl(pilot / "ledger.jsonl", [entry])
    only = ("--set", "rewards.weights={correctness: 1}", "--questions", "1000000")
    said = said_of(path, capsys, *only, "--from", str(pilot))
    # 4,000,000 x 2 calls with 100 + 50 tokens that were not cached and 100 new ones, and a draw for each question.
    assert re.search(r"^ ?score and select judge 4,000,000 9,000,000 900 1,100 ", said, re.MULTILINE), said
    assert "1.5 kept of a question, measured" in said
    # An evaluation has five runs for the two of this selection: 400 x 2 x 5 / 2, and a draw for each question.
    said = said_of(
        path, capsys, *only, "--from", str(pilot), "--test", "200", "--set", "rewards.runs={least: 2, most: 5}"
    )
    assert re.search(r"^ ?evaluate judge 400 2,200 ", said, re.MULTILINE), said


@pytest.mark.slow
def test_dense_indexes_are_planned_for_any_number_of_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """E5-base on the 21 million passages of Wikipedia: 21e6 x 768 x 4 bytes, and 8 x 32 bytes of links."""
    pytest.importorskip("faiss")
    path = experiment(tmp_path)
    parts = {"words": {}, "meaning": {"kind": "dense", "encoder": {"path": "intfloat/e5-base-v2"}}}
    index = {"path": str(tmp_path / "index"), "kind": "fused", "parts": parts, "chunk_tokens": 180}
    text = f"index={json.dumps(index)}"
    said = said_of(path, capsys, "--documents", "21000000", "--set", text, "--gpu", "A100-80")
    assert "index.parts.meaning: 21,000,000 vectors of 768 numbers, 105 shards" in said
    assert re.search(r"Flat 64\.5 64\.5", said) and re.search(r"HNSW32 70\.2 0\.33", said), said
    assert "IVF4096,PQ64 nprobe=64 2.92 1.34" in said
    # 21e6 x 180 tokens of 109 million parameters, at 13,700 to 11,300 a second of a model of 7 billion.
    assert re.search(r"index index\.parts\.meaning\.encoder 3,780 1\.2 to 1\.5", said), said
    assert "index: 21,000,000 chunks x 180 tokens at most" in said
    assert "vectors of" not in said_of(path, capsys, "--set", text)
