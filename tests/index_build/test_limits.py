"""Chunks fit what the index's encoder reads: no text is left out of its vectors unsaid."""

import pickle
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ratchet.index_build.chunks import Chunker
from ratchet.retrieval.layout import IndexSettings
from ratchet.retrieval.loader import open_folder
from tests.helpers.building import write_whole_config
from tests.helpers.commands import command_of
from tests.helpers.tiny import save_tiny_tokenizer
from tests.helpers.tiny_index import write_documents

main = command_of("index")

LIMIT = 48
CAT = "The cat of the lighthouse keeper is called Bramble."
FILLER = "The tower stands on a rock and the sea is grey in winter. " * 60
DOCUMENTS = [
    {"id": "long", "text": FILLER + CAT, "title": "Ada Torrin"},
    {"id": "untitled", "text": FILLER.replace("tower", "mill") + "It was sold."},
    {"id": "short", "text": "The harbour of Velm."},
]


@pytest.fixture(scope="module")
def lion(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A tiny sparse encoder that reads LIMIT tokens; nothing but this key keeps it from reading more."""
    from tests.helpers import plain_encoders

    folder = plain_encoders.save_llama(tmp_path_factory.mktemp("lion"))
    return {"path": str(folder), "device": "cpu", "dtype": "float32", "max_length": LIMIT}


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["index_build", *map(str, arguments)])
    main()


def config_of(folder: Path, documents: list[dict[str, str]] = DOCUMENTS, **index: Any) -> Path:
    folder.mkdir(exist_ok=True)
    path = write_documents(folder / "documents.jsonl", documents)
    return write_whole_config(folder, {"path": str(folder / "index"), "documents": [str(path)], **index})


def chunk_texts(folder: Path) -> list[str]:
    index = open_folder(folder)
    return list(index.store.chunk_texts())


def token_count(encoder: dict[str, Any], text: str) -> int:
    return len(tokenizer_of(encoder["path"])(text)["input_ids"])


@cache
def tokenizer_of(path: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)


@pytest.mark.slow
@pytest.mark.parametrize("measured", ["by the encoder", "by index.tokenizer"])
def test_all_of_a_long_document_is_in_its_sparse_vectors(
    tmp_path: Path, lion: dict[str, Any], measured: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """An encoder that reads ten times as much makes the same vectors of the same chunks."""
    from ratchet.core.config import EncoderConfig
    from ratchet.retrieval.encoders.sparse import load_encoder

    named: dict[str, Any] = (
        {} if measured == "by the encoder" else {"tokenizer": str(save_tiny_tokenizer(tmp_path / "words", "falcon3"))}
    )
    command(monkeypatch, "--config", config_of(tmp_path, kind="sparse", encoder=lion, **named))
    texts = chunk_texts(tmp_path / "index")
    assert max(token_count(lion, text) for text in texts) in (LIMIT - 2, LIMIT - 1, LIMIT)
    assert texts[0].startswith("Ada Torrin\nThe tower") and any(CAT[-8:] in text for text in texts)
    cut, whole = (
        load_encoder(EncoderConfig(**{**lion, "max_length": n})).encode_documents(texts) for n in (LIMIT, 512)
    )
    np.testing.assert_array_equal(cut.terms, whole.terms)
    np.testing.assert_array_equal(cut.codes, whole.codes)
    # The chunks that the config asks for are larger, which is said before they are made.
    said = capsys.readouterr()
    assert "index.chunk_tokens is 512" in said.err and "index.encoder.max_length" in said.err
    assert f"{LIMIT} tokens" in said.err
    assert "no chunk was cut by the encoder" in said.out
    command(monkeypatch, "inspect", tmp_path / "index")
    assert "no chunk was cut by the encoder" in capsys.readouterr().out


@pytest.mark.slow
def test_what_a_long_title_leaves_no_room_for_is_counted(
    tmp_path: Path, lion: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from ratchet.core.config import EncoderConfig
    from ratchet.retrieval.encoders.sparse import load_encoder

    documents = [{"id": "a", "text": FILLER, "title": "A very long title of a report " * 9}, *DOCUMENTS]
    config = config_of(tmp_path, documents, kind="sparse", encoder=lion)
    command(monkeypatch, "--config", config)
    lengths = [token_count(lion, text) for text in chunk_texts(tmp_path / "index")]
    over = [length - LIMIT for length in lengths if length > LIMIT]
    assert over and len(over) < len(lengths)
    said = f"{len(over):,} chunks were cut by the encoder, {sum(over):,} tokens in all"
    out = capsys.readouterr().out
    assert said in out and "shorten their titles" in out and "index.encoder.max_length" in out
    for arguments in (["inspect", tmp_path / "index"], ["--config", config, "--workers", "2"]):
        command(monkeypatch, *arguments)
        assert said in capsys.readouterr().out
    # The encoder itself counts the same.
    encoder = load_encoder(EncoderConfig(**lion))
    assert encoder.document_limit.over(chunk_texts(tmp_path / "index")) == [max(n - LIMIT, 0) for n in lengths]


@pytest.mark.slow
def test_a_worker_cuts_the_same_chunks(lion: dict[str, Any]) -> None:
    """It is sent the chunker; and what other documents are cut with it changes nothing either."""
    from ratchet.core.config import EncoderConfig
    from ratchet.retrieval.encoders.sparse import load_encoder

    limit = load_encoder(EncoderConfig(**lion)).document_limit
    chunker = Chunker(limit.tokenizer, 40, 10, "lion", limit)
    texts, titles = [FILLER[i:] for i in range(9)], ["of " * (4 * i) for i in range(9)]
    here = chunker.cut_and_count(texts, titles)
    assert pickle.loads(pickle.dumps(chunker)).cut_and_count(texts, titles) == here
    assert [chunker.cut([text], [title])[0] for text, title in zip(texts, titles, strict=True)] == here[0]
    assert here[1] == (0, 0)
    assert len(here[0][8]) > len(here[0][0])  # its title leaves less room


# Indexes that are there


def test_an_index_of_words_alone_is_the_one_it_was() -> None:
    """Its key in format 4: indexes that are there are built further while it stays."""
    settings = IndexSettings(
        kind="bm25", engine="ratchet", chunk_tokens=512, chunk_overlap=80, tokenizer="t", k1=0.9, b=0.4,
        stemmer="english", stop_words=True, encoder="",
    )  # fmt: skip
    assert settings.key == "d9d6daaacec0b2e39b9d54310805b23a"
