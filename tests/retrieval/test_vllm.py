"""A real vLLM server and sentence-transformers in this process, on the same encoder and the same cross-encoder."""

import logging
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ratchet.core.config import EncoderConfig, RerankConfig
from ratchet.retrieval.encoders.dense import load_dense_encoder, model_folder, open_dense_encoder
from ratchet.retrieval.reranking import RerankedIndex, open_reranker
from tests.helpers.small_models import MINILM, save_cross_encoder
from tests.helpers.tiny_index import tiny_index
from tests.helpers.vllm_real import serving_poolers

pytest.importorskip("sentence_transformers")
pytestmark = [pytest.mark.vllm, pytest.mark.slow]

CLOSE = 1e-5
"""The most that a score of 0 to 1, or a number of a vector of length 1, may differ. Seen: 2e-7."""
QUERY = "Which harbour lies north of Velm?"
WORDS = ("harbour", "Velm", "pilot", "smith", "tide", "ship", "lantern", "cargo", "river", "bridge", "clock", "market")
LENGTHS = (1, 3, 10, 25, 60, 120, 300, 450, 700, 5000)
"""Words of the texts; the cross-encoder reads 512 tokens, and the encoder 256."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-encoder."""
    return save_cross_encoder(tmp_path_factory.mktemp("encoder") / "model")


@pytest.fixture(scope="module")
def encoder() -> Path:
    return model_folder(EncoderConfig(path=MINILM))


@pytest.fixture(scope="module")
def served(model: Path, encoder: Path) -> Iterator[list[str]]:
    """The addresses of the cross-encoder and of the encoder."""
    with serving_poolers(model.parent, model, encoder) as urls:
        yield urls


@pytest.fixture(scope="module")
def texts() -> list[str]:
    draw = random.Random(1)
    return [" ".join(draw.choices(WORDS, k=length)) for length in LENGTHS]


def test_both_rerank_alike(model: Path, served: list[str], texts: list[str], tmp_path: Path) -> None:
    """Activation, and what is cut of queries and texts that are too long for the model, are the same."""
    index = tiny_index(tmp_path / "velm", [{"id": f"d{at}", "text": f"{text} Velm"} for at, text in enumerate(texts)])
    here = RerankConfig(model=str(model), device="cpu")
    asked = [(QUERY, texts), (texts[-2], texts), (texts[-2], texts[:1])]
    there = RerankConfig(model=str(model), url=served[0])
    own, remote = open_reranker(here)(asked), open_reranker(there)(asked)
    mine, theirs = (RerankedIndex(index, config).search("Velm", 99) for config in (here, there))
    for one, other in zip(own, remote, strict=True):
        assert other == pytest.approx(one, abs=CLOSE)
    assert np.diff(np.sort(own[0])).min() > CLOSE, "scores tell the order of the texts"
    assert [passage.id for passage in theirs] == [passage.id for passage in mine] and len(mine) >= len(texts)


def test_both_encode_alike(
    encoder: Path, served: list[str], texts: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    here = load_dense_encoder(EncoderConfig(path=str(encoder), device="cpu"))
    with caplog.at_level(logging.WARNING):
        there = open_dense_encoder(EncoderConfig(path=str(encoder), url=served[1]))
        assert there.dimension == here.dimension
        np.testing.assert_allclose(there.encode_documents(texts), here.encode_documents(texts), rtol=0, atol=CLOSE)
        np.testing.assert_allclose(there.encode_queries(texts), here.encode_queries(texts), rtol=0, atol=CLOSE)
    assert [record.message for record in caplog.records if "cut there" in record.message] == [
        f"{served[1]}/embeddings: texts that are longer than the model reads are cut there"
    ]
