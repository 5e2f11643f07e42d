"""python -m index_build capacity: what it predicts beside what is really built and searched."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.testing import assert_allclose
from tiny import save_tiny_tokenizer, tiny_tokenizer
from tiny_index import shared_tokenizer

from index_build.build import build_index
from index_build.capacity import rates, search_rates
from index_build.capacity.command import main
from index_build.capacity.forecast import Goal, Measured, plan_build, plan_serving
from index_build.capacity.lists import KNOWN, ListBytes, random_list, spectrum
from index_build.capacity.rates import Building, Postings, Sample, Texts
from index_build.capacity.search_rates import Disk, Searching
from index_build.postings import SparsePostings
from index_build.writing import FolderWriter
from ratchet.config import load_config
from ratchet.errors import UserError
from retrieval.encoders.vectors import WEIGHTS
from retrieval.layout import read_shards
from retrieval.sparse.shards import FileEntry, ShardManifest

WORDS = 1_000_000


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same measurements on less."""
    monkeypatch.setattr(rates, "POSTINGS", 1 << 16)
    monkeypatch.setattr(rates, "ENCODE_SECONDS", 0.5)
    monkeypatch.setattr(search_rates, "POSTINGS", 1 << 18)
    monkeypatch.setattr(search_rates, "DISK_BYTES", 1 << 23)
    monkeypatch.setattr(search_rates, "MEMORY_BYTES", 1 << 24)


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


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(config: Path, *arguments: str) -> dict[str, Any]:
        main(["--config", str(config), "--json", *arguments])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return run


def built_bytes(config: Path) -> dict[str, int]:
    index = load_config(config).index
    manifest, _ = build_index(index, shared_tokenizer(), "tiny")
    assert manifest is not None
    shards = read_shards(Path(index.path), manifest)
    sizes = {name: sum(shard.files[name].bytes for shard in shards) for name in shards[0].files}
    return {**sizes, "count of postings": sum(shard.postings for shard in shards)}


def test_bytes_of_many_more_documents_are_those_of_the_index_that_is_then_built(tmp_path: Path, run: Run) -> None:
    config = write_config(tmp_path, 4000, chunk_tokens=100, chunk_overlap=20, shard_documents=2000)
    plan = run(config, "--documents", "4_000", "--sample", "250")["build"]
    real = built_bytes(config)
    searched = {"postings", "regions", "terms.offsets", "terms.utf8", "term_hashes", "lengths", "count of postings"}
    exceptions = {"exception_keys", "exception_values"}
    texts = sum(size for name, size in real.items() if name not in searched | exceptions)
    assert plan["shards"] == 2
    assert_allclose(plan["postings"], real["count of postings"], rtol=0.03)
    assert_allclose(plan["bytes"]["postings"], real["postings"], rtol=0.05)
    assert_allclose(plan["bytes"]["texts and ids"], texts, rtol=0.03)
    assert_allclose(plan["bytes"]["lengths"], real["lengths"], rtol=0.03)
    terms = real["regions"] + real["terms.offsets"] + real["terms.utf8"] + real["term_hashes"]
    assert_allclose(plan["bytes"]["terms"], terms, rtol=0.25)


def test_a_plan_as_text_and_nothing_left_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path, 300)
    main(["--config", str(config), "--documents", "14_000_000", "--jobs", "7", "--workers", "4", "--memory-gb", "1"])
    out = capsys.readouterr().out
    for wanted in ("14,000,000 documents", "--job I/7", "7 x 4 processes", "chunking", "nothing in memory", "1 GB"):
        assert wanted in out
    assert "To keep all of it in memory" in out
    assert max(map(len, out.replace(str(tmp_path), "FOLDER").splitlines())) <= 120
    assert list((tmp_path / "indexes").iterdir()) == []


def test_the_encoder_of_the_config_is_really_run(tmp_path: Path, run: Run) -> None:
    from transformers import BertConfig, BertForMaskedLM

    from retrieval.encoders.loading import load_encoder
    from retrieval.encoders.sparse import EncoderConfig

    tokenizer = tiny_tokenizer()
    shape = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    BertForMaskedLM(shape).save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(str(tmp_path / "encoder"))
    encoder = {"path": str(tmp_path / "encoder"), "top": 40, "device": "cpu"}
    config = write_config(tmp_path, 40, kind="sparse", encoder=encoder)
    plan = run(config, "--documents", "1_000", "--sample", "40")
    texts = ["\n" + document["text"] for document in zipf_documents(40)]
    vectors = load_encoder(EncoderConfig(**encoder)).encode_documents(texts)
    assert plan["measured"]["chunks"] == len(vectors)
    assert_allclose(plan["measured"]["postings_per_chunk"], len(vectors.terms) / len(vectors), rtol=0.05)
    assert plan["measured"]["encode_chunks_per_s"] > 0
    encoding = next(stage for stage in plan["build"]["stages"] if stage["name"] == "encoding")
    assert_allclose(encoding["seconds"], plan["build"]["chunks"] / plan["measured"]["encode_chunks_per_s"])
    assert plan["build"]["terms"] <= len(tokenizer)
    assert "encoded vectors" in plan["build"]["temporary"]


def test_without_the_encoder_its_rate_is_not_made_up(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, 60, kind="sparse", encoder={"path": "nowhere/lion"})
    with pytest.raises(UserError, match=r"nowhere/lion.*--postings-per-chunk"):
        run(config, "--documents", "1000")
    given = ["--documents", "1_000", "--postings-per-chunk", "50", "--vocabulary", "4000"]
    plan = run(config, *given)
    assert plan["build"]["wall_hours"] is None
    assert any("NOT MEASURED" in note for note in plan["notes"])
    assert_allclose(plan["build"]["postings"], 50 * plan["build"]["chunks"], rtol=0.05)
    plan = run(config, *given, "--encode-chunks-per-s", "10")
    assert plan["build"]["wall_hours"] > plan["build"]["chunks"] / 10 / 10 / 3600
    main(["--config", str(config), *given])
    assert "all but encoding" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--set", "index.url=http://127.0.0.1:1"], "engine: ratchet"),
        (["--set", "index.kind=dense"], "kind: bm25 or sparse"),
        (["--set", "index.documents=[]"], "index.documents"),
        (["--set", "index.documents=[missing.jsonl]"], "missing.jsonl"),
    ],
)
def test_what_cannot_be_planned_is_refused(tmp_path: Path, arguments: list[str], problem: str) -> None:
    config = write_config(tmp_path, 5)
    with pytest.raises(UserError, match=problem):
        main(["--config", str(config), "--documents", "1000", *arguments])


@pytest.mark.parametrize("number", ["0", "-3", "many", "1.5"])
def test_bad_numbers(tmp_path: Path, number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--config", "x.yaml", "--documents", number])
    assert caught.value.code == 2
    assert "--documents" in capsys.readouterr().err


# The model of lists


@pytest.mark.parametrize("chunks", [3000, 200_000])
def test_list_bytes_are_those_of_the_posting_file(tmp_path: Path, chunks: int) -> None:
    random = np.random.default_rng(5)
    sizes = np.array([1, 2, 3, 7, 30, 150, 900, 2500])
    if chunks > 10_000:
        sizes = np.append(sizes, [12_000, 60_000, 150_000])
    lists = [random_list(random, size, chunks) for size in sizes]
    rows, terms = np.concatenate(lists), np.repeat(np.arange(len(sizes)), sizes)
    order = np.argsort(rows, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=chunks))])
    postings = SparsePostings(tmp_path, len(sizes), WEIGHTS)
    files = FolderWriter(tmp_path)
    postings.add(offsets, terms[order], np.full(len(rows), 0x3F80))
    postings.write(files)
    entries = files.finish()
    starts = np.append(4 * np.fromfile(tmp_path / "regions", "<u4").astype(np.int64), entries["postings"].bytes)
    assert_allclose(ListBytes(chunks, placed=True)(sizes), np.diff(starts), rtol=0.05, atol=8)


def test_spectrum_keeps_postings_and_known_shares() -> None:
    frequencies = np.array([400, 90, KNOWN] + [3] * 20 + [1] * 200)
    sizes, counts = spectrum(frequencies, 1000, 50_000, growth=0.5)
    assert_allclose(sizes @ counts, 50 * frequencies.sum(), rtol=1e-6)
    assert sizes[:3].tolist() == [20_000, 4500, 50 * KNOWN]
    assert_allclose(counts.sum(), len(frequencies) * 50**0.5, rtol=1e-6)
    sizes, counts = spectrum(frequencies, 1000, 50_000, growth=0.9, limit=300)
    assert_allclose([counts.sum(), sizes @ counts], [300, 50 * frequencies.sum()], rtol=1e-6)
    sizes, counts = spectrum(frequencies, 1000, 100, growth=0.5)
    assert_allclose(sizes @ counts, frequencies.sum() / 10)


# The arithmetic

GOAL = Goal(1_000_000, None, 100_000, jobs=4, workers=2, threads=4, memory=1e9)


def measured() -> Measured:
    entry = FileEntry(dtype="<i8", bytes=1000, sha256="")
    names = ("texts.utf8", "term_hashes", "terms.offsets", "terms.utf8")
    manifest = ShardManifest(
        settings="",
        source="",
        source_sha256="",
        first=0,
        documents=100,
        chunks=200,
        terms=100,
        postings=6000,
        total_length=6000,
        top=1.0,
        files=dict.fromkeys(names, entry),
    )
    of_term = {"a": 100, "b": 50, "c": 10}
    return Measured(
        Sample(Path(), 100, 1000, read=10_000, skipped=50_000, digested=1e9),
        Texts(
            [""] * 200, np.arange(101), {"chunking": 1.0, "texts": 0.1, "terms": 0.2, "finishing": 0.5}, 20, manifest
        ),
        Postings(200, np.array(list(of_term.values())), 0.5, None, of_term),
        Building(1e-3, 0.0, 1e-7, 0.0, 300.0, 6000),
        Searching(1e-4, 1e-9, 0.5, 2, 1000, memory=1e12),
        Disk(1e8, 1e8, ""),
        encoded=None,
        encodes=False,
        process=0,
    )


def test_hours() -> None:
    build = plan_build(GOAL, measured(), bm25=True)
    stages = {stage.name: stage for stage in build.stages}
    assert (build.chunks, build.shards, build.shard_chunks) == (2_000_000, 10, 200_000)
    assert_allclose(stages["chunking"].hours(1, 1), 10_000 / 3600)
    assert_allclose(stages["chunking"].hours(4, 2), 10_000 / 8 / 3600)
    assert_allclose(stages["planning"].hours(4, 2), (100 + 0.01) / 3600)
    # 10 shards in 4 jobs of 2 workers: the busiest job has 3, in two rounds.
    of_shard = sum(stage.seconds or 0 for stage in build.stages if stage.runs == "worker") / 10
    assert build.wall_hours is not None
    assert_allclose(build.wall_hours * 3600, 100.01 + 2 * of_shard)
    # Before shard i of one file lie i hundred thousand documents.
    assert_allclose(build.one_file_hours, 45 * 100_000 / 50_000 / 3600)
    doubled = plan_build(replace(GOAL, chunks=4_000_000), measured(), bm25=True)
    assert_allclose(doubled.stages[2].hours(1, 1), 20_000 / 3600)
    assert_allclose(doubled.bytes["texts and ids"], 2 * build.bytes["texts and ids"])


def test_an_encoder_is_shared_by_the_workers_of_a_machine() -> None:
    build = plan_build(GOAL, replace(measured(), encodes=True, encoded=100.0), bm25=True)
    encoding = next(stage for stage in build.stages if stage.name == "encoding")
    assert_allclose(encoding.hours(1, 1), 20_000 / 3600)
    assert_allclose(encoding.hours(4, 2), 5_000 / 3600)
    without = plan_build(GOAL, measured(), bm25=True).wall_hours
    assert without is not None and build.wall_hours is not None
    assert_allclose(build.wall_hours - without, 3 * 2000 / 3600)


def test_latencies_and_memory() -> None:
    m = measured()
    build = plan_build(GOAL, m, bm25=True)
    queries = [["a", "c"], ["b", "unknown"]]
    serving = plan_serving(GOAL, m, build, queries, bm25=True)
    # a is in every second chunk, b in every fourth, c in every twentieth; 2 million chunks.
    assert_allclose(serving.query_postings, (1_100_000 + 500_000) / 2)
    assert_allclose(serving.one_thread, 1e-4 + 800_000e-9)
    assert_allclose(serving.cold - serving.latency, serving.query_bytes / 1e8)
    assert_allclose(serving.per_second, 4 / (serving.one_thread * 0.5))
    assert (serving.cached, serving.nodes, serving.top) == (1, 1, None)
    assert 1_000_000 < serving.query_bytes < 3_000_000
    slow = replace(m, searching=replace(m.searching, memory=1e8))
    assert_allclose(
        plan_serving(GOAL, slow, build, queries, bm25=True).one_thread, 1e-4 + serving.query_bytes / 1e8, rtol=1e-6
    )


def test_what_does_not_fit_into_memory() -> None:
    m = measured()
    m = replace(m, known=replace(m.known, limit=3), process=100_000)
    build = plan_build(GOAL, m, bm25=False)
    queries = [["a", "c"], ["b", "unknown"]]
    whole = plan_serving(GOAL, m, build, queries, bm25=False)
    goal = replace(GOAL, memory=whole.searched_bytes / 2.5 + m.process)
    serving = plan_serving(goal, m, build, queries, bm25=False)
    assert_allclose([serving.cached, serving.nodes], [0.4, 3])
    assert_allclose(serving.expected, serving.latency + 0.6 * (serving.cold - serving.latency))
    # As many postings a chunk as `top` says fit beside what is not postings.
    assert serving.top is not None
    assert_allclose(
        serving.top * build.chunks * build.bytes["postings"] / build.postings + build.bytes["terms"],
        serving.cache_bytes,
    )
    nothing = plan_serving(replace(GOAL, memory=50_000), m, build, queries, bm25=False)
    assert (nothing.cached, nothing.nodes, nothing.top) == (0, 0, 0)
