"""LoRA adapter folders in PEFT's format: read, checked, and identified by their content.

Whoever applies an adapter, or has a server apply it, gets it from `read_adapter`: one that is damaged, or changes
nothing, is an error and never a result that looks like the base model's.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, deserialize

from ratchet.core.errors import UserError
from ratchet.core.files import open_regular, read_json_file

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
EFFECTIVE = ("peft_type", "r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "bias")
"""Keys of the configuration that change the output of plain LoRA."""
NO_EFFECT = frozenset(
    {
        *("auto_mapping", "base_model_name_or_path", "peft_version", "revision", "task_type", "inference_mode"),
        *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
        *("lora_dropout", "eva_config", "megatron_core", "qalora_group_size"),
    }
)
"""Keys of PEFT's configuration (0.21) that change no output, whatever they hold: where the adapter is from, which
layers it has (its weights name them), how it was trained, and settings of features that another key turns on. Any other
key that is not in EFFECTIVE must be off."""
PLAIN_STARTS = (True, False, "gaussian", "orthogonal", "eva", "mica")
"""Values of init_lora_weights that leave the base model's own weights as they are."""
TENSOR = re.compile(r"(?P<layer>.+)\.(?:lora_(?P<linear>[AB])\.weight|lora_embedding_(?P<embedding>[AB]))")
INFINITY = {
    "F64": ("<u8", 0x7FF << 52),
    "F32": ("<u4", 0xFF << 23),
    "F16": ("<u2", 0x1F << 10),
    "BF16": ("<u2", 0xFF << 7),
}
"""The unsigned type of a number's bits, and the bits of infinity. Without the sign,
larger numbers have larger bits, and NaN's are larger than infinity's; so no library for these types is needed."""
LARGEST_RANK, LARGEST_ALPHA = 4096, 1e6
"""Far above any in use; more is a damaged file."""
NO_FOLDER = "is this a PEFT adapter folder?"
MERGE = "merge the adapter into its base model and name the merged folder instead"
AGAIN = "The adapter is damaged: copy its folder again, or train it again"


class Layer(NamedTuple):
    """An adapter's addition to one layer: B A, times its scale."""

    down: str
    """The name of A's tensor, (rank, inputs)."""
    up: str
    """The name of B's tensor, (outputs, rank)."""
    rank: int
    inputs: int
    outputs: int


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter that `read_adapter` has checked."""

    digest: str
    config: Mapping[str, Any]
    layers: Mapping[str, Layer]
    weights: bytes

    @property
    def rank(self) -> int:
        """The largest rank of its layers."""
        return max(layer.rank for layer in self.layers.values())


def read_adapter(folder: str | Path) -> Adapter:
    """Read an adapter. Raises UserError where it is damaged, is more than LoRA, or changes nothing of the base
    model."""
    config, weights = _read(folder)
    _check_features(Path(folder) / CONFIG, config)
    ranks = _ranks(Path(folder) / CONFIG, config)
    return Adapter(_digest(config, weights), config, _layers(Path(folder) / WEIGHTS, weights, ranks), weights)


def read_uniform_adapter(folder: str | Path) -> Adapter:
    """`read_adapter` for the in-process engine and vLLM, which scale all layers alike: vLLM ignores these patterns."""
    adapter = read_adapter(folder)
    if patterns := [key for key in ("rank_pattern", "alpha_pattern") if adapter.config.get(key)]:
        raise UserError(f"{folder}: {patterns[0]} cannot be served, since one scale holds for all layers; {MERGE}")
    return adapter


def adapter_digest(folder: str | Path) -> str:
    """Return 16 hexadecimal digits of what an adapter does: a new version gets a new name, a moved folder keeps its
    own."""
    return _digest(*_read(folder))


def checked_digest(folder: str | Path) -> str:
    """`adapter_digest`. Raises UserError where `read_adapter` does."""
    return read_adapter(folder).digest


def is_adapter(folder: str | Path) -> bool:
    """Return whether the folder holds an adapter."""
    return all((Path(folder) / name).exists() for name in (CONFIG, WEIGHTS))


def base_of(folder: str | Path) -> str:
    """Return the name or path of the base model that an adapter says it was trained on; may be empty."""
    return str(_read(folder)[0].get("base_model_name_or_path") or "")


def load_request(folder: str | Path) -> dict[str, str]:
    """Return the body of vLLM's load_lora_adapter. The name is the content's digest, or a prefix cache could be
    stale."""
    return {"lora_name": f"ratchet-{read_uniform_adapter(folder).digest}", "lora_path": str(Path(folder).resolve())}


def _read(folder: str | Path) -> tuple[dict[str, Any], bytes]:
    path = Path(folder) / CONFIG
    try:
        config = read_json_file(path)
        path = Path(folder) / WEIGHTS
        with open_regular(path) as file:
            weights = file.read()
    except OSError as error:
        raise UserError(f"{path}: cannot read ({error.strerror}); {NO_FOLDER}") from error
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error}); {NO_FOLDER}") from error
    if not isinstance(config, dict):
        raise UserError(f"{Path(folder) / CONFIG}: not a JSON object; {NO_FOLDER}")
    return config, weights


def _features(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a configuration turns on beyond EFFECTIVE. It is part of the digest, also where it cannot be
    applied."""
    known = NO_EFFECT.union(EFFECTIVE)
    found = {key: value for key, value in config.items() if key not in known and value}
    return {key: value for key, value in found.items() if key != "init_lora_weights" or value not in PLAIN_STARTS}


def _check_features(path: Path, config: Mapping[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise UserError(
            f"{path}: peft_type is {config.get('peft_type')!r}, and only plain LoRA can be applied; {MERGE}"
        )
    for key, value in features_beyond_lora(config).items():
        raise UserError(f"{path}: {key} is {str(value)[:100]!r}, and only plain LoRA can be applied; {MERGE}")


def features_beyond_lora(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what settings of PEFT's LoraConfig turn on that engines do not apply, by name."""
    features = _features(config)
    features.pop("fan_in_fan_out", None)  # PEFT ignores it for linear layers, and honours it where it merges others
    plain = {"use_dora": (None, False), "bias": (None, "none")}
    return features | {key: config.get(key) for key, values in plain.items() if config.get(key) not in values}


def _digest(config: Mapping[str, Any], weights: bytes) -> str:
    effective = {key: config.get(key) for key in EFFECTIVE} | _features(config)
    digest = hashlib.sha256(json.dumps(effective, sort_keys=True).encode())
    digest.update(weights)
    return digest.hexdigest()[:16]


def _ranks(path: Path, config: Mapping[str, Any]) -> set[int]:
    values: dict[str, dict[str, Any]] = {}
    for key, pattern in (("r", "rank_pattern"), ("lora_alpha", "alpha_pattern")):
        own = config.get(pattern) or {}
        if not isinstance(own, dict):
            raise UserError(f"{path}: {pattern} is {own!r}, not an object of layers and values. {AGAIN}")
        values[key] = {key: config.get(key), **{f"{pattern}.{layer}": value for layer, value in own.items()}}
    for name, rank in values["r"].items():
        if type(rank) is not int or not 1 <= rank <= LARGEST_RANK:
            raise UserError(f"{path}: {name} is {rank!r}; a rank is a whole number from 1 to {LARGEST_RANK}. {AGAIN}")
    for name, alpha in values["lora_alpha"].items():
        if type(alpha) not in (int, float) or not 0 < alpha <= LARGEST_ALPHA:
            raise UserError(f"{path}: {name} is {alpha!r}; it is a number above 0, {LARGEST_ALPHA:g} at most. {AGAIN}")
    return set(values["r"].values())


def _layers(path: Path, weights: bytes, ranks: set[int]) -> dict[str, Layer]:
    try:
        tensors = dict(deserialize(weights))
    except SafetensorError as error:
        raise UserError(f"{path}: not a safetensors file ({error}). {AGAIN}") from error
    pairs: dict[str, dict[str, str]] = {}
    for name in sorted(tensors):
        found = TENSOR.fullmatch(name)
        pair = pairs.setdefault(found["layer"], {}) if found else {}
        side = (found["linear"] or found["embedding"]) if found else ""
        if not side or side in pair:
            raise UserError(
                f"{path}: {name} is neither lora_A nor lora_B of a layer, and only plain LoRA can be applied; {MERGE}"
            )
        pair[side] = name
    zero = {name for name in sorted(tensors) if _is_zero(path, name, tensors[name])}
    layers = {layer: _layer(path, pair, tensors, ranks) for layer, pair in pairs.items()}
    if not layers:
        raise UserError(f"{path}: holds no lora_A and lora_B. {AGAIN}")
    if all(layer.down in zero or layer.up in zero for layer in layers.values()):
        raise UserError(
            f"{path}: lora_B is zero in every layer, so this adapter changes nothing of its base model: its training "
            "took no step with a learning rate above 0. Train it again with more steps (training.epochs, max_steps), "
            "less warm-up (warmup_steps) or a higher learning_rate"
        )
    return layers


def _is_zero(path: Path, name: str, tensor: Mapping[str, Any]) -> bool:
    """Return whether all numbers are 0. Raises UserError where one is not finite, or where they are no numbers."""
    if tensor["dtype"] not in INFINITY:
        raise UserError(
            f"{path}: {name} holds {tensor['dtype']} values, and an adapter's are one of {', '.join(INFINITY)}. {AGAIN}"
        )
    import numpy as np  # late: whether a folder holds an adapter is asked without it

    kind, infinity = INFINITY[tensor["dtype"]]
    bits = np.frombuffer(tensor["data"], kind)
    without_sign = bits.dtype.type((1 << (8 * bits.itemsize - 1)) - 1)
    largest = int((bits & without_sign).max(initial=0))
    if largest >= infinity:
        raise UserError(
            f"{path}: {name} holds values that are not finite (NaN or infinite): the training diverged, or the file is "
            "damaged. Train it again with a lower training.learning_rate, or copy its folder again"
        )
    return largest == 0


def _layer(path: Path, pair: Mapping[str, str], tensors: Mapping[str, Mapping[str, Any]], ranks: set[int]) -> Layer:
    if missing := {"A", "B"} - pair.keys():
        there = next(iter(pair.values()))
        raise UserError(f"{path}: {there} is there, and the layer's lora_{missing.pop()} is not. {AGAIN}")
    down, up = (tuple(tensors[pair[side]]["shape"]) for side in "AB")
    if len(down) != 2 or len(up) != 2 or down[0] != up[1]:
        raise UserError(
            f"{path}: {pair['A']} is {down} and {pair['B']} is {up}, which are no (rank, inputs) and (outputs, rank). "
            f"{AGAIN}"
        )
    if down[0] not in ranks:
        said = ", ".join(map(str, sorted(ranks)))
        raise UserError(f"{path}: {pair['A']} has rank {down[0]}, and {CONFIG} beside it says {said}. {AGAIN}")
    return Layer(pair["A"], pair["B"], down[0], down[1], up[0])
