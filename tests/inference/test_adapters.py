"""An adapter's digest names what it does, not where it lies; and one that is damaged is refused wherever it is used."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig

from ratchet.core.errors import UserError
from ratchet.inference.adapters import (
    NO_EFFECT,
    Layer,
    adapter_digest,
    load_request,
    read_adapter,
)
from ratchet.inference.local.linear import LoraBank
from ratchet.sampling.pool import policy_name
from ratchet.training.adapter import publish
from ratchet.training.lora import start_from_adapter
from tests.helpers.adapter_folders import adapter_tensors, save_adapter


def adapter(folder: Path, weights: bytes = b"w", **config: object) -> str:
    folder.mkdir()
    settings = {"peft_type": "LORA", "r": 16, "lora_alpha": 16, "base_model_name_or_path": "models/a", **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return adapter_digest(folder)


def test_the_digest_follows_weights_and_scale_and_not_paths(tmp_path: Path) -> None:
    one = adapter(tmp_path / "1")
    assert one == adapter(tmp_path / "2", base_model_name_or_path="/elsewhere/a", target_modules=["q", "k"])
    assert len({one, adapter(tmp_path / "3", weights=b"v"), adapter(tmp_path / "4", lora_alpha=32)}) == 3


def test_a_folder_that_is_no_adapter_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"adapter_config\.json: cannot read"):
        adapter_digest(tmp_path)


def test_a_whole_adapter_is_read_once_with_its_layers(tmp_path: Path) -> None:
    folder = save_adapter(tmp_path / "one", rank_pattern={"v": 3}, alpha_pattern={"v": 0.5})
    read = read_adapter(folder)
    assert read.digest == adapter_digest(folder) and read.rank == 2
    assert read.layers == {"q": Layer("q.lora_A.weight", "q.lora_B.weight", rank=2, inputs=4, outputs=3)}
    wide = adapter_tensors() | {"v.lora_embedding_A": np.ones((3, 9)), "v.lora_embedding_B": np.ones((4, 3))}
    assert read_adapter(save_adapter(tmp_path / "two", tensors=wide, rank_pattern={"v": 3})).rank == 3


@pytest.mark.parametrize(
    ("config", "said"),
    [
        *(({"r": rank}, "r is .*; a rank is a whole number from 1") for rank in (-1, 0, 10**9, 2.0, True, "2", None)),
        *(
            ({"lora_alpha": alpha}, r"lora_alpha is .*; it is a number above 0")
            for alpha in (math.nan, math.inf, 0, -4, 1e300, True, "4", None)
        ),
        ({"rank_pattern": {"v": -1}}, r"rank_pattern\.v is -1"),
        ({"rank_pattern": [2]}, "rank_pattern is .2., not an object"),
        ({"alpha_pattern": {"v": math.nan}}, r"alpha_pattern\.v is nan"),
        ({"r": 3}, r"q\.lora_A\.weight has rank 2, and adapter_config\.json beside it says 3"),
    ],
)
def test_a_rank_or_alpha_that_cannot_be_is_refused(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=rf"one/adapter_.*{said}.*train it again"):
        read_adapter(save_adapter(tmp_path / "one", **config))


def test_every_key_of_pefts_configuration_is_known_or_refused_by_its_name(tmp_path: Path) -> None:
    plain = {key: value for key, value in LoraConfig(r=2, lora_alpha=4).to_dict().items() if key != "runtime_config"}
    read_adapter(save_adapter(tmp_path / "plain", **json.loads(json.dumps(plain, default=list))))
    digest = adapter_digest(save_adapter(tmp_path / "one"))
    served = {"r", "lora_alpha", "peft_type", "use_rslora", "fan_in_fan_out", "rank_pattern", "alpha_pattern"}
    for key in {*plain, "a_feature_of_tomorrow"} - served:
        changed: dict[str, Any] = {key: "pissa_niter_4" if key == "init_lora_weights" else {"on": 1}}
        folder = save_adapter(tmp_path / "one", **changed)
        if key in NO_EFFECT:
            assert read_adapter(folder).digest == digest
            continue
        with pytest.raises(UserError, match=rf"one/adapter_config\.json: {key} is .*merge the adapter"):
            read_adapter(folder)
        assert adapter_digest(folder) != digest
    for changed in ({"use_rslora": True}, {"fan_in_fan_out": True}, {"alpha_pattern": {"q": 1}}):
        assert read_adapter(save_adapter(tmp_path / "one", **changed)).digest != digest
    for use in (load_request, LoraBank(torch.nn.ModuleDict({"q": torch.nn.Linear(4, 3)}), None, torch.float32).load):
        with pytest.raises(UserError, match="alpha_pattern cannot be served"):
            use(str(tmp_path / "one"))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"q.lora_B.weight": None}, r"q\.lora_A\.weight is there, and the layer's lora_B is not"),
        ({"q.lora_A.weight": None}, r"q\.lora_B\.weight is there, and the layer's lora_A is not"),
        ({"q.lora_A.weight": None, "q.lora_B.weight": None}, "holds no lora_A and lora_B"),
        ({"q.lora_embedding_A": np.ones((2, 4))}, r"q\.lora_embedding_A is neither lora_A nor lora_B"),
        ({"lm_head.weight": np.ones(2)}, r"lm_head\.weight is neither lora_A nor lora_B"),
        ({"q.lora_B.weight": np.ones((3, 5), np.float32)}, r"\(2, 4\) and q\.lora_B\.weight is \(3, 5\)"),
        ({"q.lora_B.weight": np.ones((3, 2, 1, 1), np.float32)}, r"q\.lora_B\.weight is \(3, 2, 1, 1\)"),
        ({"q.lora_B.weight": np.ones((3, 2), np.int8)}, r"q\.lora_B\.weight holds I8 values"),
        ({"q.lora_B.weight": np.zeros((3, 2))}, "lora_B is zero in every layer.*warmup_steps"),
        ({"q.lora_B.weight": np.full((3, 2), -0.0)}, "lora_B is zero in every layer"),
    ],
)
def test_tensors_that_make_no_adapter_are_refused(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    tensors = {name: tensor for name, tensor in (adapter_tensors() | changed).items() if tensor is not None}
    with pytest.raises(UserError, match=rf"one/adapter_model\.safetensors: .*{said}"):
        read_adapter(save_adapter(tmp_path / "one", tensors=tensors))


@pytest.mark.parametrize(
    "use",
    [
        load_request,
        policy_name,
        LoraBank(torch.nn.ModuleDict({"q": torch.nn.Linear(4, 3)}), None, torch.float32).load,
        lambda folder: publish(folder, folder.parent / "published", {}, {}),
        lambda folder: start_from_adapter(torch.nn.Linear(4, 3), folder),
    ],
    ids=["server", "sampling and evaluation", "in-process engine", "publish", "train --from"],
)
def test_every_way_to_use_an_adapter_refuses_one_that_is_untrained_or_damaged(
    tmp_path: Path, use: Callable[[Path], object]
) -> None:
    for b, said in ((0.0, "changes nothing of its base model"), (math.nan, "not finite")):
        with pytest.raises(UserError, match=said):
            use(save_adapter(tmp_path / "one", b))
    assert not (tmp_path / "published").exists()
