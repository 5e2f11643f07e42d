"""python -m index_build capacity: what it estimates beside what is really built and searched."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.testing import assert_allclose

from commands.capacity import main, measure
from index_build import capacity
from index_build.build import build_index
from index_build.capacity import SampleMeasurement, extrapolate, report
from ratchet.config import IndexConfig, load_config
from ratchet.errors import UserError
from retrieval.layout import read_shards
from tests.helpers.tiny import save_tiny_tokenizer, tiny_tokenizer
from tests.helpers.tiny_index import shared_tokenizer

WORDS = 1_000_000


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "SEARCHES", 2)


def zipf_documents(count: int, words: int = 60) -> list[dict[str, Any]]:
    """Documents of made-up words, the r-th as common as 1 / r."""
    random = np.random.default_rng(3)
    shares = 1 / np.arange(1, WORDS + 1)
    drawn = random.choice(WORDS, (count, words), p=shares / shares.sum())
    return [{"id": f"document-{i:05d}", "text": " ".join(f"w{word}" for word in row)} for i, row in enumerate(drawn)]


def write_config(folder: Path, documents: int, **index: Any) -> Path:
    save_tiny_tokenizer(folder / "tokenizer")
    source = folder / "documents.jsonl"
    source.write_text("".join(json.dumps(document) + "\n" for document in zipf_documents(documents)))
    questions = folder / "questions.jsonl"
    questions.write_text("".join(json.dumps({"id": str(i), "text": f"Is w{i} w{3 * i + 1}?"}) + "\n" for i in range(9)))
    config = {
        "run": str(folder / "run"),
        "models": {"agent": {"path": str(folder / "tokenizer")}},
        "index": {"path": str(folder / "indexes" / "one"), "documents": [str(source)], **index},
        "rewards": {"weights": {"f1": 1.0}},
        "evaluation": {"scores": ["em"]},
        "questions": {split: {"path": str(questions)} for split in ("train", "dev", "test")},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.slow
def test_bytes_of_more_documents_are_those_of_the_index_that_is_then_built(tmp_path: Path) -> None:
    path = write_config(tmp_path, 4000, chunk_tokens=100, chunk_overlap=20, shard_documents=2000)
    config = load_config(path)
    small, sample = measure(config, 400)
    assert (small.documents, sample.documents) == (100, 400)
    found = extrapolate(small, sample, 4000, 2000)
    manifest, _ = build_index(config.index, shared_tokenizer(), "tiny")
    assert manifest is not None
    shards = read_shards(Path(config.index.path), manifest)
    files = [(name, entry.bytes) for shard in shards for name, entry in shard.files.items()]
    texts = sum(size for name, size in files if name.startswith(capacity.TEXT_FILES))
    assert found.shards == len(shards) == 2
    assert_allclose(found.chunks, manifest.chunks, rtol=0.03)
    assert_allclose(found.text_bytes, texts, rtol=0.03)
    # New words become rarer with every document: what is estimated from few documents is an upper bound.
    searched = sum(size for _, size in files) - texts
    assert 1 <= found.search_bytes / searched < 1.4
    postings = sum(size for name, size in files if name == "postings") / 2
    assert 1 <= found.shard_posting_bytes / postings < 1.4


def test_the_command_prints_an_estimate_and_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, 300)
    main(["--config", str(config), "--documents", "14_000_000", "--sample", "200", "--workers", "4"])
    out = capsys.readouterr().out
    for wanted in (
        "14,000,000 documents",
        "Sample: 200 documents",
        "--workers 4 --job K/",
        "this fits 64.0 GB",
        "70 shards",
    ):
        assert wanted in out
    assert not [line for line in out.replace(str(tmp_path), "FOLDER").splitlines() if len(line) > 120]
    assert list((tmp_path / "indexes").iterdir()) == []
    main(["--config", str(config), "--documents", "14_000_000", "--memory-gb", "1", "--hours", "1"])
    out = capsys.readouterr().out
    assert "Sample: 300 documents" in out and "DOES NOT FIT 1.0 GB" in out


def test_without_questions_documents_are_searched_by_their_first_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, 20)
    (tmp_path / "questions.jsonl").unlink()
    main(["--config", str(config), "--documents", "1000"])
    said = capsys.readouterr()
    assert "Latency: " in said.out and "first words of documents" in said.err


def test_the_encoder_of_the_config_is_really_run(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForMaskedLM

    tokenizer = tiny_tokenizer()
    shape = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    BertForMaskedLM(shape).save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(str(tmp_path / "encoder"))
    path = write_config(
        tmp_path, 40, kind="sparse", encoder={"path": str(tmp_path / "encoder"), "top": 40, "device": "cpu"}
    )
    small, sample = measure(load_config(path), 40)
    assert (small.documents, sample.documents) == (10, 40)
    assert sample.chunks >= 40 and sample.posting_bytes > 40 * 20
    # A query is encoded, which the size of the index does not change, and then searched.
    found = extrapolate(small, sample, 1000, 1000)
    assert found.fixed > sample.ranking > 0


def test_an_encoder_that_is_not_there_is_named(tmp_path: Path) -> None:
    config = write_config(tmp_path, 60, kind="sparse", encoder={"path": "nowhere/lion"})
    with pytest.raises(UserError, match="nowhere/lion"):
        main(["--config", str(config), "--documents", "1000"])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--set", "index.url=http://127.0.0.1:1"], "engine: ratchet"),
        (["--set", "index.kind=dense"], "kind: bm25 or sparse"),
        (["--set", "index.documents=[]"], "index.documents"),
        (["--set", "index.documents=[missing.jsonl]"], "missing.jsonl"),
        (["--sample", "1"], "2 or more"),
    ],
)
def test_what_cannot_be_estimated_is_refused(tmp_path: Path, arguments: list[str], problem: str) -> None:
    config = write_config(tmp_path, 5)
    with pytest.raises(UserError, match=problem):
        main(["--config", str(config), "--documents", "1000", *arguments])


@pytest.mark.parametrize("number", ["0", "-3", "many", "1.5"])
def test_bad_numbers(tmp_path: Path, number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--config", "x.yaml", "--documents", number])
    assert caught.value.code == 2
    assert "--documents" in capsys.readouterr().err


# The arithmetic

SMALL = SampleMeasurement(
    documents=25, chunks=50, seconds=0.5, text_bytes=250_000, search_bytes=40_000, posting_bytes=30_000,
    ranking=1.0e-4, answering=3.0e-4,
)  # fmt: skip
SAMPLE = SampleMeasurement(
    documents=100, chunks=200, seconds=1.0, text_bytes=1_000_000, search_bytes=115_000, posting_bytes=75_000,
    ranking=1.15e-4, answering=3.2e-4,
)  # fmt: skip
INDEX = IndexConfig(path="index", shard_documents=100_000)


def test_the_whole_is_extrapolated_from_the_sample_and_what_it_added_to_a_quarter_of_it() -> None:
    found = extrapolate(SMALL, SAMPLE, 1_000_000, 100_000)
    assert (found.chunks, found.shards) == (2_000_000, 10)
    assert_allclose(found.build_seconds, 10_000)
    assert_allclose(found.text_bytes, 10e9)
    # 1000 bytes of every further document of a shard.
    assert_allclose(found.search_bytes, 10 * (115_000 + 1000 * 99_900))
    assert_allclose(found.shard_posting_bytes, 75_000 + 600 * 99_900)
    assert_allclose(found.per_chunk, 1e-7)
    assert_allclose(found.fixed, 3e-4)
    assert_allclose(found.latency, 0.2003)
    # Where noise is all that two small indexes differ in, nothing is said of a large one.
    found = extrapolate(replace(SMALL, ranking=1.1e-4), SAMPLE, 1_000_000, 100_000)
    assert math.isnan(found.latency) and found.fixed == SAMPLE.answering
    assert "0.32 ms a query on the sample, which is too small" in report(INDEX, SAMPLE, found, 2, 24, 64e9, 1e9)


def test_jobs_for_the_hours_that_building_may_take() -> None:
    found = replace(extrapolate(SMALL, SAMPLE, 1_000_000, 100_000), build_seconds=36_000)
    assert "2 jobs with `--workers 2 --job K/2`, the busiest 3h00m (" in report(INDEX, SAMPLE, found, 2, 3, 64e9, 1e9)
    # 10 hours in 10 shards: 5 jobs of 2 workers need one hour, and no number of jobs needs less.
    assert "5 jobs with `--workers 2 --job K/5`, the busiest 1h00m (" in report(INDEX, SAMPLE, found, 2, 1, 64e9, 1e9)
    text = report(INDEX, SAMPLE, found, 2, 0.5, 64e9, 1e9)
    assert "10 jobs with" in text and "lower index.shard_documents" in text
    # Processes of a machine share its encoder.
    sparse = IndexConfig(path="index", kind="sparse", shard_documents=100_000)
    assert "4 jobs with `--workers 2 --job K/4`, the busiest 3h00m (" in report(sparse, SAMPLE, found, 2, 3, 64e9, 1e9)


def test_what_does_not_fit_into_memory() -> None:
    found = replace(extrapolate(SMALL, SAMPLE, 1_000_000, 100_000), search_bytes=10e9, shard_posting_bytes=20e9)
    text = report(INDEX, SAMPLE, found, 2, 24, 11e9, 1e9)
    assert "11.0 GB, of which 1.0 GB are the process; this fits 11.0 GB" in text and "machines hold" not in text
    text = report(INDEX, SAMPLE, found, 2, 24, 5e9, 1e9)
    assert "DOES NOT FIT 5.0 GB" in text and "3 machines hold it together, each with the documents of 4 shards" in text
    assert "set index.shard_documents to 77,309 or less" in text
    assert "DOES NOT FIT" in report(INDEX, SAMPLE, found, 2, 24, 0.5e9, 1e9)
