"""What the engines and GPUs are doing, where that is known: vLLM's own metrics, and nvidia-smi on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx

from ratchet.core.config import ModelConfig
from ratchet.core.http.clients import open_client
from ratchet.core.http.responses import BadResponse, send_request_sync
from ratchet.inference.engines import addressed

SECONDS = 1.5
"""How long an engine or nvidia-smi may take to answer."""
MAX_BYTES = 4 << 20
METRICS = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "cache",
    "vllm:generation_tokens_total": "new_tokens",
    "vllm:prompt_tokens_total": "prompt_tokens",
}
"""vLLM's name of a metric to ours. `cache` is a share of 1; requests and tokens are summed over a server's models."""
FIELDS = ("name", "utilization.gpu", "memory.used", "memory.total", "power.draw", "temperature.gpu")


def read_engines(models: Mapping[str, ModelConfig]) -> Iterator[tuple[str, str, dict[str, float], str]]:
    """(model, address, metrics, problem) of every server that the models, or the environment, give an address of."""
    with open_client(trust_env=False, timeout=SECONDS) as client:
        for name, model in models.items():
            if model.engine != "vllm":
                continue
            given = addressed(name, model).url or ()
            key = os.environ.get(model.api_key_env, "")
            for url in (given,) if isinstance(given, str) else given:
                yield name, url, *_read_engine(client, url, key)


def _read_engine(client: httpx.Client, url: str, key: str) -> tuple[dict[str, float], str]:
    parts = urlsplit(url)
    address = urlunsplit((parts.scheme, parts.netloc, "/metrics", "", ""))
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = send_request_sync(client, client.build_request("GET", address, headers=headers), MAX_BYTES)
    except (httpx.TransportError, BadResponse) as error:
        return {}, f"does not answer ({type(error).__name__})"
    return (parse_metrics(answer.text), "") if answer.is_success else ({}, f"answers with status {answer.status}")


def parse_metrics(text: str) -> dict[str, float]:
    """The numbers of METRICS in a text of Prometheus' format. What cannot be read is left out."""
    metrics: dict[str, float] = {}
    for line in text.splitlines():
        name = METRICS.get(line.partition("{")[0].partition(" ")[0])
        if name is None:
            continue
        try:
            value = float(line.rpartition("}")[2].split()[0] if "}" in line else line.split()[1])
        except (ValueError, IndexError):
            continue
        metrics[name] = max(metrics.get(name, 0.0), value) if name == "cache" else metrics.get(name, 0.0) + value
    return metrics


def read_gpus() -> list[dict[str, Any]]:
    """The GPUs of this machine; none where nvidia-smi is not there or does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=SECONDS * 2, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_gpus(done.stdout)


def parse_gpus(text: str) -> list[dict[str, Any]]:
    """A GPU for each line of nvidia-smi's CSV; memory in MiB, use in percent, null where it is not known."""
    rows = [[field.strip() for field in line.split(",")] for line in text.splitlines()]
    return [
        {"name": row[0], "use": _number(row[1]), "memory": _number(row[2]), "memory_total": _number(row[3]),
         "watts": _number(row[4]), "celsius": _number(row[5])}
        for row in rows if len(row) == len(FIELDS)
    ]  # fmt: skip


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # "[N/A]"
        return None
