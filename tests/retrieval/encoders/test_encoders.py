"""Learned sparse encoders against forward passes of transformers, on tiny random models of the real architectures."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ratchet.core.config import EncoderConfig
from ratchet.core.errors import UserError
from ratchet.retrieval.encoders import sparse
from ratchet.retrieval.encoders.sparse import SparseEncoder, load_encoder
from ratchet.retrieval.encoders.vectors import SparseVectors, load_vectors, save_vectors
from tests.helpers import plain_encoders as plain

TEXTS = [
    "The harbour of Velm",
    "Who?",
    "",
    "The engineer Ada Torrin built the harbour in the year 1204, and the searcher finds documents.",
    "Where is the answer? Which agent should act next, and why?",
    "naïve café – 東京 \U0001f600",
]
LION_SCALE = 32**-0.25


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plain.save_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plain.save_masked(tmp_path_factory.mktemp("bert"))


def load(path: Path, **keys: Any) -> SparseEncoder:
    keys = {"device": "cpu", "dtype": "float32", "max_length": 64, **keys}
    return load_encoder(EncoderConfig(path=str(path), **keys))


def dense(vectors: SparseVectors, vocabulary: int) -> np.ndarray:
    rows = np.zeros((len(vectors), vocabulary))
    for i in range(len(vectors)):
        part = slice(vectors.offsets[i], vectors.offsets[i + 1])
        assert (np.diff(vectors.terms[part].astype(int)) > 0).all()
        rows[i, vectors.terms[part]] = vectors.weights()[part]
    return rows


def tokens(folder: Path, text: str) -> list[int]:
    from transformers import AutoTokenizer

    return list(AutoTokenizer.from_pretrained(folder)(text)["input_ids"])


def expected(folder: Path, logits: Callable[[list[int]], torch.Tensor], scale: float) -> np.ndarray:
    return np.stack([plain.pool(logits(tokens(folder, text)), scale).numpy() for text in TEXTS])


def assert_same(vectors: SparseVectors, wanted: np.ndarray) -> None:
    """Equal to within bfloat16's rounding of the logit, which is the same share of the weight or a smaller one."""
    got = dense(vectors, wanted.shape[1])
    assert (wanted > 0).mean() > 0.2  # the comparison is about something
    assert (wanted == 0).mean() > 0.02
    np.testing.assert_allclose(got, wanted, rtol=1 / 256 + 1e-4, atol=1e-5)


@pytest.mark.slow
def test_lion_matches_a_plain_llama_with_full_attention(llama: Path) -> None:
    vectors = load(llama).encode_documents(TEXTS)
    assert_same(vectors, expected(llama, lambda ids: plain.llama_logits(llama, ids), LION_SCALE))
    causal = expected(llama, lambda ids: plain.llama_logits(llama, ids, causal=True), LION_SCALE)
    with pytest.raises(AssertionError):
        assert_same(vectors, causal)


@pytest.mark.parametrize("model_type", ["bert", "distilbert", "roberta", "modernbert"])
def test_masked_models_match_their_own_forward_pass(tmp_path: Path, model_type: str) -> None:
    from transformers import AutoModelForMaskedLM

    folder = plain.save_masked(tmp_path, model_type)
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()

    @torch.inference_mode()
    def logits(ids: list[int]) -> torch.Tensor:
        return model(torch.tensor([ids])).logits[0].clone()

    encoder = load(folder, max_length=60)
    assert encoder.vocabulary == model.config.vocab_size
    assert_same(encoder.encode_documents(TEXTS), expected(folder, logits, 1.0))


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_batches_slices_and_order_change_nothing(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = request.getfixturevalue(kind)
    whole = load(folder)
    wanted = dense(whole.encode_documents(TEXTS), whole.vocabulary)
    for name, tokens_at_once in (("BATCH_TOKENS", 1), ("BATCH_TOKENS", 60), ("LOGIT_TOKENS", 1), ("LOGIT_TOKENS", 7)):
        with monkeypatch.context() as patch:
            patch.setattr(sparse, name, tokens_at_once)
            got = dense(whole.encode_documents(TEXTS), whole.vocabulary)
        np.testing.assert_allclose(got, wanted, rtol=1 / 128, atol=1e-5)  # one step of bfloat16
        assert (got == wanted).mean() > 0.99
    backwards = dense(whole.encode_documents(TEXTS[::-1]), whole.vocabulary)
    np.testing.assert_allclose(backwards[::-1], wanted, rtol=1 / 128, atol=1e-5)
    again = whole.encode_documents(TEXTS)
    assert again.codes.tobytes() == whole.encode_documents(TEXTS).codes.tobytes()


def test_a_masked_model_reads_up_to_its_last_position_and_no_further(bert: Path, tmp_path: Path) -> None:
    roberta = plain.save_masked(tmp_path, "roberta")
    padding = json.loads((roberta / "config.json").read_text())["pad_token_id"]
    for folder, most in ((bert, 64), (roberta, 64 - padding - 1)):
        load(folder, max_length=most).encode_documents(["?!" * 100, "?"])
        assert_error(f"max_length: {most + 1}, .* at most {most} tokens", folder, max_length=most + 1)


def test_what_is_cut_is_counted_and_a_query_that_is_cut_is_told_once(
    llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A special token and one for each mark; a mark of two bytes is two."""
    encoder = load(llama, max_length=5)
    assert encoder.document_limit.over(["?!", "?!?!", "?!?!?!", "\u00a1?!?", ""]) == [0, 0, 2, 1, 0]
    encoder.encode_queries(["?!?!", "\ud800"])
    encoder.encode_documents(["?!?!?!?!"])  # the builder counts these
    assert not caplog.messages
    encoder.encode_queries(["?", "?!?!?!"])
    encoder.encode_queries(["?!?!?!"])
    (message,) = caplog.messages
    assert f"a query of 7 tokens was cut to the 5 that {llama} reads" in message and "max_length" in message


def test_texts_without_tokens_no_texts_and_broken_unicode(tmp_path: Path) -> None:
    folder = plain.save_llama(tmp_path)
    plain.save_tokenizer(folder, "$A")
    encoder = load(folder)
    vectors = encoder.encode_queries(["", "Velm", ""])
    assert vectors.offsets[0] == vectors.offsets[1] == 0 < vectors.offsets[2] == vectors.offsets[3]
    assert len(encoder.encode_queries([])) == 0
    assert len(encoder.encode_queries([""]).codes) == 0
    np.testing.assert_array_equal(encoder.encode_queries(["a\ud800"]).codes, encoder.encode_queries(["a?"]).codes)


@pytest.mark.slow
def test_an_adapter_is_merged_alone_or_beside_the_weights(llama: Path, tmp_path: Path) -> None:
    adapter = plain.save_adapter(tmp_path / "adapter", llama)
    weights = plain.merged_weights(llama, adapter)
    wanted = expected(llama, lambda ids: plain.llama_logits(llama, ids, weights), LION_SCALE)
    alone = load(adapter)  # its adapter_config.json names the base, whose tokenizer it takes
    assert_same(alone.encode_documents(TEXTS), wanted)
    with pytest.raises(AssertionError):
        assert_same(load(llama).encode_documents(TEXTS), wanted)

    together = tmp_path / "together"
    together.mkdir()
    for source in (llama, adapter):
        for file in source.iterdir():
            (together / file.name).write_bytes(file.read_bytes())
    assert_same(load(together).encode_documents(TEXTS), wanted)
    assert load(together).digest == alone.digest != load(llama).digest

    change_json(together / "adapter_config.json", base_model_name_or_path="someone/elsewhere")
    assert_same(load(together).encode_documents(TEXTS), wanted)
    (together / "adapter_model.safetensors").unlink()
    assert_error("adapter_model.safetensors", together)
    (together / "model.safetensors").unlink()
    assert_error("someone/elsewhere.*base", together)


def change_json(path: Path, **keys: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def assert_error(match: str, path: Path, **keys: Any) -> None:
    with pytest.raises(UserError, match=match):
        load(path, **keys)


def test_the_digest_follows_what_decides_the_vectors(llama: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in llama.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    wanted = load(llama).digest
    assert load(copy).digest == wanted  # in another place
    assert len({wanted, load(llama, max_length=9).digest, load(llama, dtype="bfloat16").digest}) == 3
    weights = load_file(copy / "model.safetensors")
    weights["model.norm.weight"] += 1e-3
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    changed = load(copy).digest
    plain.save_tokenizer(copy, "$A")
    assert len({wanted, changed, load(copy).digest}) == 3


def test_errors_name_the_folder_and_the_way_out(llama: Path, bert: Path, tmp_path: Path) -> None:
    assert_error("no such model folder", tmp_path / "nowhere")
    assert_error("safetensors", tmp_path)
    assert_error("max_length: 2 leaves no room", bert, max_length=2)
    assert_error("device: 'nonsense'", bert, device="nonsense")
    if not torch.cuda.is_available():
        assert_error("device: 'cuda' cannot be used here", bert, device="cuda")

    (tmp_path / "pytorch_model.bin").write_bytes(b"a pickle")
    assert_error("may run code", tmp_path)
    folder = plain.save_masked(tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).rename(tmp_path / name)
    assert_error("there is no tokenizer", folder)
    (tmp_path / "tokenizer.json").rename(folder / "tokenizer.json")
    weights = load_file(folder / "model.safetensors")
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
        weights[name] = weights[name][:300]
    save_file(weights, folder / "model.safetensors")
    assert_error("word_embeddings.weight' has another shape", folder)
    change_json(folder / "config.json", vocab_size=300)
    assert_error("its tokenizer has more tokens", folder)
    change_json(folder / "config.json", model_type="gpt2")
    assert_error("'gpt2'", folder)
    (folder / "config.json").write_text("{")
    assert_error("config.json", folder)


def test_a_model_without_its_head_or_with_damaged_weights_is_refused(tmp_path: Path) -> None:
    folder = plain.save_llama(tmp_path, tied=False)
    weights = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in weights.items() if k != "lm_head.weight"}, folder / "model.safetensors")
    assert_error("lack 1 .*'lm_head.weight'", folder)
    weights["lm_head.weight"][3] = float("nan")
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(UserError, match="not finite"):
        load(folder).encode_queries(["Velm"])
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-9])
    assert_error("cannot load the weights", folder)


def test_saved_vectors_come_back_and_damaged_ones_do_not(bert: Path, tmp_path: Path) -> None:
    vectors = load(bert).encode_documents(TEXTS)
    path, other = tmp_path / "part.npz", tmp_path / "other.npz"
    assert load_vectors(path) is None
    save_vectors(path, vectors)
    save_vectors(other, vectors)
    data = path.read_bytes()
    assert data == other.read_bytes()
    back = load_vectors(path)
    assert back is not None
    for name in ("offsets", "terms", "codes"):
        np.testing.assert_array_equal(getattr(back, name), getattr(vectors, name))
        assert getattr(back, name).dtype == getattr(vectors, name).dtype
    for at in range(0, len(data), 97):  # every stretch of the file, headers and data
        path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        found = load_vectors(path)
        assert found is None or all(
            np.array_equal(getattr(found, name), getattr(vectors, name)) for name in ("offsets", "terms", "codes")
        )
        path.write_bytes(data[:at])
        assert load_vectors(path) is None
    np.savez(path, offsets=np.array([{}], dtype=object), terms=vectors.terms, codes=vectors.codes)
    assert load_vectors(path) is None


def test_weights_in_parts_are_read_and_a_missing_part_is_named(llama: Path, tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    LlamaForCausalLM.from_pretrained(llama).save_pretrained(tmp_path, max_shard_size="40KB")
    (tmp_path / "tokenizer.json").write_bytes((llama / "tokenizer.json").read_bytes())
    parts = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(parts) > 1
    np.testing.assert_array_equal(load(tmp_path).encode_queries(TEXTS).codes, load(llama).encode_queries(TEXTS).codes)
    parts[0].unlink()
    assert_error(parts[0].name, tmp_path)
