"""Proxies, certificates and addresses in the environment that no HTTP client can use: one line, before work begins."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.core.config import EmbedderConfig, McpConfig, ModelConfig, SourceConfig, TrainingConfig, parse
from ratchet.core.errors import UserError
from ratchet.core.http import environment
from ratchet.core.http.clients import open_async_client, open_client
from ratchet.inference.http.connection import Connection
from ratchet.inference.tokenizer import load_tokenizer
from ratchet.retrieval.backends.remote import RemoteIndex
from ratchet.retrieval.encoders.dense import open_embedder
from ratchet.retrieval.sources.registry import open_sources
from tests.helpers.experiment import command
from tests.helpers.pages import ROOT

VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ssl_cert_file", "ssl_cert_dir", "hf_endpoint")
ELSEWHERE = "https://models.example/v1"
UNUSABLE = [
    ("ALL_PROXY", "socks5://127.0.0.1:1080", "ALL_PROXY: .*socksio.*; correct the environment, or unset the variable"),
    ("all_proxy", "socks4://127.0.0.1:1080", "all_proxy: the address of a proxy cannot be read; .*"),
    ("HTTPS_PROXY", "http://proxy:port", "HTTPS_PROXY: the address of a proxy cannot be read; .*"),
    ("https_proxy", "http://user:pass#word@proxy:1", "https_proxy: the address of a proxy cannot be read; .*"),
    ("no_proxy", "fe80::/10", "no_proxy: the address of a proxy cannot be read; .*"),
    ("SSL_CERT_FILE", "/nowhere/ca.pem", "SSL_CERT_FILE: certificates cannot be read: .*No such file.*"),
    ("SSL_CERT_FILE", __file__, "SSL_CERT_FILE: certificates cannot be read: .*"),
]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No such variable is set, no certificates are read yet, and the hub is asked."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(environment, "_is_reachable", lambda endpoint: True)
    monkeypatch.setitem(sys.modules, "socksio", None)
    environment.certificates.cache_clear()
    yield
    environment.certificates.cache_clear()


def web(mode: str = "live", folder: str = "nowhere") -> Any:
    config = SourceConfig.model_validate({"service": "wikipedia", "mode": mode, "cache": folder})
    return open_sources({"web": config}, None)  # type: ignore[arg-type]


def mcp(url: str = "https://tools.example/mcp") -> Any:
    pytest.importorskip("mcp")
    from ratchet.retrieval.sources.mcp import McpSource

    return McpSource("tools", McpConfig(url=url))


CLIENTS: dict[str, Callable[[], object]] = {
    "client": open_client,
    "async client": open_async_client,
    "engine": lambda: Connection(ModelConfig(path="m", engine="vllm", url=ELSEWHERE)),
    "search service": web,
    "embedder": lambda: open_embedder(EmbedderConfig(path="e", url=ELSEWHERE)),
    "search server": lambda: RemoteIndex("https://search.example"),
    "hub": lambda: load_tokenizer("org/model"),
    "MCP": mcp,
}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("name", "value", "says"), UNUSABLE)
def test_each_client_names_the_variable_and_the_way_out_when_it_is_made(
    monkeypatch: pytest.MonkeyPatch, client: str, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=rf"^{says}\Z") as error:
        CLIENTS[client]()
    assert "\n" not in str(error.value) and "word" not in str(error.value), "a proxy's address may hold a password"


def test_what_stays_on_this_machine_needs_no_proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://")
    open_client(trust_env=False).close()
    Connection(ModelConfig(path="m", engine="vllm", url="http://127.0.0.1:1/v1"))
    open_embedder(EmbedderConfig(path="e", url="http://localhost:1/v1"))
    web("replay", str(tmp_path))
    mcp("http://127.0.0.1:1/mcp")


@pytest.mark.parametrize("name", ["http://proxy:3128", "proxy:3128", "https://user:a%23b@proxy", ""])
def test_proxies_that_work_are_left_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", name)
    monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.0/8,::1,.example.org,*.example.com, host:8000")
    open_client().close()


@pytest.mark.parametrize("value", ["huggingface.co", "https://", "https://hub:port", ""])
def test_a_hub_without_an_address_is_named(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", value)
    with pytest.raises(UserError, match=f"^HF_ENDPOINT: {value!r} is not an address such as https://huggingface.co"):
        load_tokenizer("org/model")


SERVED = {"path": "m", "engine": "vllm", "url": ELSEWHERE}
REACHING: dict[str, dict[str, Any]] = {
    "model": {"models": {"agent": {"path": str(ROOT)}, "judge": SERVED}},
    "hub": {"models": {"agent": {"path": "org/model"}}},
    "replica": {"models": {"agent": {**SERVED, "path": str(ROOT), "url": ["http://127.0.0.1:1/v1", ELSEWHERE]}}},
    "source": {"sources": {"web": {"service": "wikipedia"}}},
    "embedder": {"embedder": {"path": "e", "url": ELSEWHERE}},
    "index": {"index": {"url": "https://search.example"}},
}


@pytest.mark.parametrize("part", REACHING)
def test_self_training_looks_for_what_a_later_stage_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: str
) -> None:
    config: dict[str, Any] = {"run": "run", "models": {"agent": {"path": str(ROOT)}}}
    config |= {"rewards": {"weights": {"f1": 1.0}}, "index": {"path": "index", "documents": ["none.jsonl"]}}
    config |= REACHING[part]
    config["questions"] = {name: {"path": str(ROOT / "demo" / f"{name}.jsonl")} for name in ("train", "dev", "test")}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("HTTPS_PROXY", "htp://proxy")
    done = command("-m", "ratchet", "selftrain", "--config", "c.yaml", folder=tmp_path)
    assert done.returncode == 2 and done.stdout.count("\n") == 1, done.stdout
    assert "HTTPS_PROXY: the address of a proxy cannot be read" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]


def test_off_is_a_word_where_it_is_a_value() -> None:
    settings = yaml.safe_load("wandb: off")
    assert parse(TrainingConfig, settings, "training").wandb == "off"
    assert not parse(TrainingConfig, yaml.safe_load("padding_free: off"), "training").padding_free
    with pytest.raises(UserError, match=r"wandb: .*got True \(known: off, offline, online\)"):
        parse(TrainingConfig, yaml.safe_load("wandb: on"), "training")
