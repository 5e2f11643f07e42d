"""A hub that cannot be reached costs seconds and one line, for models, encoders and data sets."""

import os
import time
from collections.abc import Callable, Iterator

import pytest

from ratchet.core.config import EncoderConfig
from ratchet.core.errors import UserError
from ratchet.core.http import environment as hub
from ratchet.inference.footprint import footprint
from ratchet.inference.tokenizer import load_tokenizer
from ratchet.inference.weights import load_causal_model
from ratchet.questions.benchmark import HubDataset
from ratchet.questions.load import _hub_rows
from ratchet.retrieval.encoders.dense import model_folder

NAME = "nobody/no-such-thing-7b"


@pytest.fixture(autouse=True)
def closed_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The hub is a port where nothing listens, and its libraries are online until they are told otherwise."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    import datasets.config
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    hub._is_reachable.cache_clear()
    yield
    hub._is_reachable.cache_clear()
    hub._unreachable.clear()


@pytest.mark.parametrize(
    "load",
    [
        lambda: load_tokenizer(NAME),
        lambda: load_causal_model(NAME),
        lambda: footprint(NAME, None, "bfloat16"),
        lambda: model_folder(EncoderConfig(path=NAME)),
        lambda: list(_hub_rows(HubDataset(NAME, None, {"test": "test"}), "test")),
    ],
    ids=["tokenizer", "model", "footprint", "encoder", "data set"],
)
def test_it_is_one_line_within_seconds(load: Callable[[], object]) -> None:
    begun = time.monotonic()
    with pytest.raises(UserError, match=r"^[^\n]*the hub http://127.0.0.1:9 cannot be reached[^\n]*$"):
        load()
    assert time.monotonic() - begun < 30
    assert os.environ["HF_HUB_OFFLINE"] == "1"
