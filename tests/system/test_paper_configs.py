"""The configs of papers and closed models are run to their ends: the recipe at their head, on a few made-up questions.

Models, corpus and questions are others; systems, settings, scores and rewards are the config's. All runs in this
process, the commands of selftrain.py as well, with a model that answers in whatever form it is asked for.
"""

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from ratchet.commands import selftrain
from ratchet.core.config import ModelConfig
from ratchet.inference.chat_formats import WrapperFormat
from ratchet.inference.completion import Message, SamplingParams
from ratchet.inference.scripted import ScriptedEngine
from ratchet.inference.tokenizer import load_tokenizer
from ratchet.questions.labels import FEVER
from tests.helpers import claims
from tests.helpers.any_system import Talker
from tests.helpers.experiment import run_stage, run_words, write_lines
from tests.helpers.pages import ROOT
from tests.helpers.playing import act, query, review, say
from tests.helpers.reward_cases import judge_reply, material
from tests.helpers.small_models import MINILM, shortened_minilm
from tests.helpers.tiny import save_tiny_tokenizer

SAME = ("mrag_bm25", "tool_mad_gpt_4o_mini")
"""Differ from mrag.yaml and tool_mad.yaml in an index and a model that are replaced here
(tests/core/test_paper_configs.py)."""
CONFIGS = sorted(
    str(path.relative_to(ROOT))
    for folder in ("papers", "closed")
    for path in (ROOT / "configs" / folder).glob("*.yaml")
    if path.stem not in SAME
)
PLACES = ("Velm", "Tarn", "Oskel", "Brimm")
BUILT, NOT_BUILT = "Ada Torrin built the harbour of {}", "Nobody built the harbour of {}"
ASKED = re.compile(r"harbour of (\w+)[?:]")
"""The place of a question; facts end otherwise."""
ELSEWHERE = re.compile(r"^export|^ratchet slurm|--dry-run|ratchet generate")
"""What is left out: keys of services, SLURM (tests/system/test_slurm_jobs.py), plans for vLLM (tests/inference), and
questions to be made (tests/question_generation)."""


def recipe(config: Path) -> list[list[str]]:
    """The commands at the head of a config, in words."""
    lines = config.read_text().partition("\nrun:")[0].splitlines()
    commands = "\n".join(line[1:].strip() for line in lines if line.startswith("#   ")).replace("\\\n", "")
    return [shlex.split(line, comments=True) for line in commands.splitlines() if not ELSEWHERE.search(line)]


class Player(Talker):
    """A model for all: mRAG's agents and judge in free JSON, the rest as `Talker`. Some of its answers are wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.string = "Ada"

    def reply(self, prompt: str, params: SamplingParams, messages: Sequence[Message]) -> str:
        opening = messages[0]["content"]
        turn = sum(message["role"] == "assistant" for message in messages)
        asked = ASKED.search(prompt)
        place = asked[1] if asked else PLACES[0]
        if opening.startswith("You judge") and "{" in messages[-1]["content"] and messages[0]["role"] == "user":
            return judge_reply(material(messages))
        if opening.startswith("You lead"):
            told = {"question": f"Who built the harbour of {place}?"}
            return [act("searcher", **told), act("answerer", **told), act("finisher")][min(turn, 2)]
        if opening.startswith("You search a document"):
            pages = [review({1: True, 2: True}, end=False), review({3: True, 4: True}, end=True)]
            return pages[min(turn, 2) - 1] if turn else query(f"harbour of {place}")
        if '"response"' in opening or opening.startswith("You write the response"):
            return say(response=(BUILT if params.seed % 3 else NOT_BUILT).format(place) + ".")
        return super().reply(prompt, params, messages)


def make_world(folder: Path) -> None:
    """A model, a corpus, questions, and the benchmarks' files that recipes make a corpus of."""
    torch.manual_seed(3)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(**shape, vocab_size=512)).save_pretrained(folder / "model")
    save_tiny_tokenizer(folder / "model")
    shortened_minilm(folder)
    (folder / "script.jsonl").write_text("")
    facts = [{"id": place, "title": place, "text": BUILT.format(place) + "."} for place in PLACES]
    write_lines(folder / "corpus.jsonl", *facts)
    asked = {
        "train": "Who built the harbour of {}?",
        "dev": "The harbour of {}: whose work?",
        "test": "Name whoever built the harbour of {}?",
    }
    labels = [label.model_dump() for label in FEVER]
    for split, text in asked.items():
        about = [(text.format(place), BUILT.format(place) + ".") for place in PLACES]
        rows: list[dict[str, Any]] = [{"text": one, "answers": ["Ada"], "reference": fact} for one, fact in about]
        write_lines(folder / f"{split}.jsonl", *({"id": f"{split}{n}", **row} for n, row in enumerate(rows)))
        rows = [{"text": fact, "form": "claim", "labels": labels, "label": "SUPPORTS"} for _, fact in about]
        rows = [{**row, "id": f"{split}{n}", "text": f"{split}: {row['text']}"} for n, row in enumerate(rows)]
        write_lines(folder / f"{split}-claims.jsonl", *rows)
    abstract = {"QUESTION": "Does it?", "CONTEXTS": ["It was measured."], "final_decision": "yes"}
    pubmedqa, scifact = folder / "data/pubmedqa", folder / "data/scifact"
    claims.write(pubmedqa / "test_ground_truth.json", [])
    (pubmedqa / "ori_pqal.json").write_text(json.dumps(dict.fromkeys(("11", "12"), abstract)))
    (pubmedqa / "test_ground_truth.json").write_text('{"12": "yes"}')
    claims.write(scifact / "claims_dev.jsonl", [{"id": 1, "claim": claims.CLAIM, "evidence": {}}])
    claims.write(scifact / "corpus.jsonl", [{"doc_id": 31, "title": "Salt", "abstract": ["It is old."]}])
    checked = {"claim": claims.CLAIM, "evidence": "Velmora lies in the sea.", "stance": "completely-support"}
    claims.write(folder / "data/factcheckbench/data.jsonl", [{"claim": claims.CLAIM, "label": "true"}])
    claims.write(folder / "data/factcheck_gpt/claim_evidence_stance.jsonl", [checked])


def shrunk(config: dict[str, Any]) -> dict[str, Any]:
    """The config with other models, corpora, questions and services, and with little training."""
    model = {"path": "model", "engine": "scripted", "script": "script.jsonl", "dtype": "float32", "device": "cpu"}
    config["models"] = dict.fromkeys(config["models"], model)
    kind = "-claims" if "accuracy" in config["rewards"].get("weights", ()) else ""

    def small(split: dict[str, Any], name: str) -> dict[str, Any]:
        kept: dict[str, Any] = {"order": split["order"]} if "order" in split else {}
        return {**kept, "path": f"{name}{kind}.jsonl", "rows": [0, 4 if name == "train" else 1]}

    for name in ("train", "dev", "test"):
        config["questions"][name] = small(config["questions"][name], name)
    evaluation = config["evaluation"]
    # One benchmark of each order, since all ask the same questions here.
    benchmarks = {
        split.get("order"): (name, small(split, "test") | {"rows": [0, 1]})
        for name, split in evaluation.get("benchmarks", {}).items()
    }
    config["evaluation"] = {**evaluation, "benchmarks": dict(benchmarks.values())}
    baselines = list(evaluation.get("baselines", {}).items())
    if len(baselines) > 12:  # Tool-MAD's
        kept = dict(baselines[::8])
        config["evaluation"] |= {"baselines": kept}
    index = config.setdefault("index", {"path": "indexes/small", "documents": ["corpus.jsonl"]})
    if not str(index["documents"][0]).endswith(("facts.jsonl.gz", "pubmed.jsonl.gz")):
        index["documents"] = ["corpus.jsonl"]
    if "encoder" in index:
        dense = index["kind"] == "dense"
        index["encoder"] = {"path": MINILM if dense else "model", "device": "cpu"}
    config["sources"] = {name: {**source, "mode": "local"} for name, source in config.get("sources", {}).items()}
    config["sampling"] = {"samples": 2}
    config["rewards"]["runs"] = 1
    few = {"max_steps": 2, "eval_steps": 1, "batch_size": 2, "micro_batch": 1, "warmup_steps": 1}
    config["training"] = {
        **{key: config["training"][key] for key in ("choose_by",) if key in config.get("training", {})},
        **few,
    }
    return config


class Shell:
    """Runs the commands of a recipe, and sets the variables that it sets."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self._variables = capsys, dict[str, str]()

    def __call__(self, words: Sequence[str]) -> None:
        name, is_set, program = words[0].partition("=$(")
        if is_set:
            words = [program, *words[1:-1], words[-1].removesuffix(")")]
        self._capsys.readouterr()
        assert run([self._variables.get(word, word) for word in words]) == 0, words
        if is_set:
            self._variables[f"${name}"] = self._capsys.readouterr().out.strip()


def run(words: Sequence[str]) -> int:
    """The exit status of a command of a recipe; what stands behind `--` alone."""
    program, *rest = words[words.index("--") + 1 :] if "--" in words else words
    return run_words(["-m", program, *rest] if program == "ratchet" else rest)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_the_recipe_runs_to_its_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_world(tmp_path)
    config = shrunk(yaml.safe_load((ROOT / name).read_text()))
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(yaml.safe_dump(config, sort_keys=False))

    def played(cls: type[ScriptedEngine], model: ModelConfig) -> ScriptedEngine:
        chat = WrapperFormat.from_tokenizer(load_tokenizer(model.path, model.revision), model.path)
        return cls(chat, Player().reply, 32_000)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ScriptedEngine, "from_config", classmethod(played))
    monkeypatch.setattr(selftrain, "run_stage", run_stage)
    if "'index'" not in str(commands := recipe(ROOT / name)):
        assert run(["ratchet", "index", "--config", name]) == 0
    shell = Shell(capsys)
    for words in commands:
        shell(words)
    folder = tmp_path / config["run"] / "round-1"
    evaluated = folder / "evaluation"
    for results in ("results.json", *(f"results-{benchmark}.json" for benchmark in config["evaluation"]["benchmarks"])):
        arms = json.loads((evaluated / results).read_text())["arms"]
        assert {"base", *config["evaluation"].get("baselines", {})} <= {arm["name"] for arm in arms}
        assert all(arm["statuses"].get("finished") for arm in arms), [(arm["name"], arm["statuses"]) for arm in arms]
    if any("$THRESHOLDS" in words for words in commands):
        assert (
            "thresholds" in yaml.safe_load((tmp_path / "runs/tool_mad_calibrated/config.yaml").read_text())["embedder"]
        )
    if any("selftrain.py" in words for words in commands):
        assert (folder / "adapter/adapter_config.json").exists() and (tmp_path / config["run"] / "report.html").exists()
