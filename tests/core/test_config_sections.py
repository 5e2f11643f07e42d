"""Every section is checked when the file is read: errors name the file, the full key and the closest name."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from ratchet.commands.config import open_config
from ratchet.core.config import Config, EncoderConfig, MemoryConfig
from ratchet.core.config.questions import LANGUAGES
from ratchet.core.errors import UserError
from ratchet.question_generation.prompts import LANGUAGES as WRITTEN

BASE: dict[str, Any] = {
    "run": "runs/x",
    "models": {"agent": {"path": "m"}, "judge": {"path": "j"}},
    "index": {"path": "i"},
    "questions": {name: {"path": f"{name}.jsonl"} for name in ("train", "dev", "test")},
}
SPARSE = {"path": "i", "kind": "sparse"}
DENSE = {"path": "i", "kind": "dense"}


def read(folder: Path, *overrides: str, **changes: object) -> Config:
    path = folder / "experiment.yaml"
    path.write_text(yaml.safe_dump({**BASE, **changes}))
    return open_config(path, overrides)


@pytest.mark.parametrize(
    ("changes", "key", "known"),
    [
        ({"index": {**SPARSE, "encoder": {"max_lenth": 9}}}, "index.encoder.max_lenth", "max_length"),
        (
            {"index": {**DENSE, "encoder": {"devise": "cpu"}}},
            "index.encoder.devise",
            "device",
        ),
        ({"sources": {"web": {"service": "tavily", "modes": "live"}}}, "sources.web.modes", "mode"),
        ({"sources": {"lab": {"service": "mcp", "comand": ["x"]}}}, "sources.lab.comand", "command"),
        ({"system": {"settings": {"max_call": 3}}}, "system.settings.max_call", "max_calls"),
        (
            {"evaluation": {"baselines": {"plain": {"name": "vanilla_rag", "settings": {"stile": "brief"}}}}},
            "evaluation.baselines.plain.settings.stile",
            "style",
        ),
    ],
)
def test_an_unknown_key_is_named_in_full_with_the_file_and_the_closest_key(
    tmp_path: Path, changes: dict[str, object], key: str, known: str
) -> None:
    with pytest.raises(UserError) as refused:
        read(tmp_path, **changes)
    assert (
        f"{tmp_path}/experiment.yaml: {key}: unknown key (did you mean {known!r}?)" in str(refused.value).splitlines()
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": {"judge": "jugde"}}, "rewards.judge names the model 'jugde', .*did you mean 'judge'"),
        (
            {"evaluation": {"baselines": {"a": {"name": "cot", "roles": {"default": {"model": "agnet"}}}}}},
            r"evaluation\.baselines\.a\.roles\.default\.model names the model 'agnet', .*did you mean 'agent'",
        ),
        ({"generation": {"out": "x", "model": "jugde"}}, r"generation\.model names the model .*did you mean 'judge'"),
        ({"system": {"name": "mragg"}}, r"system\.name: there is no 'mragg' in agents/ .*did you mean 'mrag'"),
        (
            {"sweep": {"systems": {"a": {"name": "coot"}}}},
            r"sweep\.systems\.a\.name: there is no 'coot' .*did you mean 'cot'",
        ),
        ({"system": {"roles": {"plannr": {}}}}, r"system\.roles\.plannr: mrag has no such role .*'planner'"),
        (
            {"evaluation": {"benchmarks": {"a": {"benchmark": "hotpot"}}}},
            r"evaluation\.benchmarks\.a\.benchmark: there is no 'hotpot' .*did you mean 'hotpotqa'",
        ),
        (
            {"questions": {**BASE["questions"], "dev": {"benchmark": "nq", "split": "dve"}}},
            r"questions\.dev\.split: the benchmark 'nq' has no 'dve' .*did you mean 'dev'",
        ),
        ({"sources": {"web": {"service": "tavly"}}}, r"sources\.web: service: 'tavly' .*did you mean 'tavily'"),
        ({"rewards": {"weights": {"correctnes": 1}}}, r"rewards\.weights\.correctnes: .*did you mean 'correctness'"),
        ({"index": {"path": "i", "kind": "sprase"}}, r"index\.kind: .*did you mean 'sparse'"),
        (
            {"index": {"path": "i", "kind": "bm25", "encoder": {"path": "m"}}},
            r"index: .*bm25 takes no encoder",
        ),
        ({"evaluation": {"skip": {"plain": ["test"]}}}, r"evaluation\.skip\.plain: no such baseline"),
        ({"sweep": {"test": ["tset"]}}, r"sweep\.test: tset: no such split .*did you mean 'test'"),
        ({"generation": {"out": "x", "language": "eng"}}, r"generation\.language: no language 'eng' .*'en'"),
        ({"models": {"agent": {"path": "m", "serve": {"arguments": {"model": "x"}}}}}, r"serve\.arguments: --model is"),
        ({"embedder": {"path": "", "device": "cpu"}}, r"embedder: path is missing"),
    ],
)
def test_a_wrong_name_or_value_is_refused_when_the_file_is_read(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=rf"experiment\.yaml: .*{message}"):
        read(tmp_path, **changes)


def test_sections_are_typed_and_read_again_as_they_are_written(tmp_path: Path) -> None:
    lion = {"path": "lion", "max_length": 9}
    given = {"index": {**SPARSE, "encoder": lion}, "memory": {"sequential": True}, "rounds": {"count": 2}}
    config = read(tmp_path, **given, sources={"web": {"service": "tavily"}})
    assert config.index.encoder == EncoderConfig(path="lion", max_length=9)
    assert read(tmp_path, index={**DENSE, "encoder": {"path": "e5"}}).index.encoder == EncoderConfig(path="e5")
    assert config.memory == MemoryConfig(sequential=True)
    dump = config.model_dump(mode="json")
    assert Config.model_validate(dump).model_dump(mode="json") == dump


def sections(kind: type[BaseModel]) -> set[type[BaseModel]]:
    found = {kind}
    waiting: list[Any] = [field.annotation for field in kind.model_fields.values()]
    while waiting:
        annotation = waiting.pop()
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            if annotation not in found:
                found.add(annotation)
                waiting += [field.annotation for field in annotation.model_fields.values()]
        else:
            waiting += getattr(annotation, "__args__", ())
    return found


def test_only_what_plugins_and_libraries_read_is_an_open_mapping() -> None:
    open_mappings = {
        f"{section.__name__}.{name}"
        for section in sections(Config)
        for name, field in section.model_fields.items()
        if field.annotation == dict[str, Any]
    }
    assert open_mappings == {
        "ModelConfig.request",
        "SystemConfig.settings",
        "PluginConfig.settings",
        "TrainingConfig.arguments",
    }


def refused_keys(section: type[BaseModel], data: dict[str, Any]) -> set[int | str]:
    try:
        section.model_validate(data)
    except ValidationError as error:
        return {part for problem in error.errors() for part in problem["loc"]}
    return set()


def test_null_is_a_value_of_every_key_whose_default_it_is() -> None:
    """A validator of a section must not refuse what the section itself has."""
    for section in sections(Config):
        for name in (name for name, field in section.model_fields.items() if field.default is None):
            assert name not in refused_keys(section, {name: None}), (section, name)


def test_the_languages_are_those_that_a_prompt_can_name() -> None:
    assert set(LANGUAGES) == set(WRITTEN)


@pytest.mark.slow
def test_importing_the_config_loads_no_other_package_of_the_project() -> None:
    code = "import sys, ratchet.core.config; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"numpy", "numba", "torch", "transformers", "httpx"}
    heavy |= {f"ratchet.{room}" for room in ("agents", "retrieval", "questions", "evaluation")}
    assert not heavy & set(done.stdout.split())
