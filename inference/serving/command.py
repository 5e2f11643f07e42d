"""python -m inference serve: vLLM servers for a config's models, and a command beside them."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import shlex
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from inference.adapters import read_adapter
from inference.addresses import url_variable
from inference.footprint import footprint
from inference.serving.devices import available_memory, planned_gpus, visible_gpus
from inference.serving.plan import Place, Serving, server_command, server_environment, servings
from inference.serving.server import Server, reserve_port
from inference.serving.split import cpu_places, split, table
from inference.serving.supervisor import ServingFailed, Supervisor, say
from ratchet.command import add_config_arguments, config_of
from ratchet.config import Config
from ratchet.errors import UserError

DESCRIPTION = """Start vLLM servers for the models that have engine: vllm and no url, wait until they are ready, run
COMMAND with their addresses and key in its environment, stop them, and exit with COMMAND's status. Without COMMAND they
run until a signal."""


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    parser.add_argument("--models", metavar="A,B", help="only these of the config's models")
    parser.add_argument("--adapter", action="append", default=[], metavar="DIR", help="a LoRA folder to load at once")
    parser.add_argument("--dry-run", action="store_true", help="print what would be started, and the memory split")
    parser.add_argument("--gpu-gb", type=float, help="with --dry-run: plan for GPUs of this size, not for this machine")
    parser.add_argument("--gpus", type=int, default=1, help="with --gpu-gb: how many (default 1)")


def serve(arguments: argparse.Namespace, command: Sequence[str]) -> int:
    """The exit status."""
    config = config_of(arguments)
    if arguments.gpu_gb and not arguments.dry_run:
        raise UserError("--gpu-gb plans for another machine: add --dry-run")
    wanted = servings(config, arguments.models.split(",") if arguments.models else None)
    if not wanted and not command:
        raise UserError(f"{arguments.config}: no model has engine: vllm and no url, so there is nothing to serve")
    trained = next((serving for serving in wanted if config.training.model in serving.names), None)
    _check_adapters(arguments.adapter, trained, config.training.model)
    keys = _keys(wanted, bool(command) or arguments.dry_run)
    places, lines = _places(wanted, arguments)
    if arguments.dry_run:
        print("\n".join([*lines, *_dry(wanted, places), *([f"then: {shlex.join(command)}"] if command else [])]))
        return 0
    for line in lines:
        say(line)
    addresses: dict[str, str] = {}
    servers: list[Server] = []
    devices: dict[str, tuple[str, ...]] = {}
    with contextlib.ExitStack() as ports:
        for serving in wanted:
            key, adapters = keys[serving.model.api_key_env], arguments.adapter if serving is trained else []
            mine = [
                _server(config, serving, number, place, ports.enter_context(reserve_port()), key, adapters)
                for number, place in enumerate(places[serving.name], 1)
            ]
            devices |= {
                server.title: place.gpus or ("cpu",) for server, place in zip(mine, places[serving.name], strict=True)
            }
            addresses |= {url_variable(name): ",".join(server.url for server in mine) for name in serving.names}
            servers += mine

        def ready() -> None:
            if not command:
                print("\n".join(f"export {name}={value}" for name, value in addresses.items()), flush=True)

        try:
            return asyncio.run(Supervisor(servers, devices).run(command, {**os.environ, **addresses, **keys}, ready))
        except ServingFailed as error:
            print(f"error: {error}", file=sys.stderr)
            return 1


def _check_adapters(adapters: Sequence[str], serving: Serving | None, trained: str) -> None:
    for folder in adapters:
        if serving is None:
            raise UserError(f"--adapter: fits models.{trained} (training.model), which is not served here")
        rank = read_adapter(folder).rank
        if rank > serving.lora_rank:
            raise UserError(
                f"{folder}: has rank {rank}, and models.{serving.name} is served for ranks up to {serving.lora_rank}; "
                f"set models.{serving.name}.serve.lora_rank={rank}"
            )


def _places(wanted: Sequence[Serving], arguments: argparse.Namespace) -> tuple[dict[str, list[Place]], list[str]]:
    """Where every server goes, and the arithmetic of it."""
    if not wanted:
        return {}, []
    sizes = {s.name: footprint(s.model.path, s.model.revision, s.model.dtype) for s in wanted}
    if arguments.gpu_gb:
        gpus = planned_gpus(arguments.gpus, arguments.gpu_gb)
    else:
        accelerated = [serving for serving in wanted if serving.model.device != "cpu"]
        gpus = visible_gpus(accelerated[0].settings.python) if accelerated else []
    on_gpu = [serving for serving in wanted if gpus and serving.model.device != "cpu"]
    on_cpu = [serving for serving in wanted if serving not in on_gpu]
    places = split(on_gpu, sizes, gpus) | cpu_places(on_cpu, sizes, available_memory())
    return places, table(wanted, sizes, places)


def _keys(wanted: Sequence[Serving], has_command: bool) -> dict[str, str]:
    """The key of every environment variable that models name: what is there, or a fresh one for the command."""
    keys = {serving.model.api_key_env: os.environ.get(serving.model.api_key_env, "") for serving in wanted}
    for name, key in keys.items():
        if not key and not has_command:
            raise UserError(
                f"{name} is not set: whoever asks the servers needs their key, which is never printed. Set one here "
                f"and there, such as: export {name}=$(openssl rand -hex 32)"
            )
    return {name: key or secrets.token_urlsafe(32) for name, key in keys.items()}


def _server(
    config: Config, serving: Serving, number: int, place: Place, held: socket.socket, key: str, adapters: Sequence[str]
) -> Server:
    title = f"{serving.name}-{number}"
    # Jobs of an array share the run folder, and each has servers of its own.
    job = os.environ.get("SLURM_JOB_ID")
    return Server(
        title=title,
        command=server_command(serving, place, held.getsockname()[1]),
        environment={**server_environment(serving, place), "VLLM_API_KEY": key},
        served_name=serving.served_name,
        log=Path(config.run) / "servers" / (f"{title}.{job}.log" if job else f"{title}.log"),
        held=held,
        ready_timeout=serving.settings.ready_timeout,
        restarts=serving.settings.restarts,
        adapters=adapters,
    )


def _dry(wanted: Sequence[Serving], places: dict[str, list[Place]]) -> Iterator[str]:
    for serving in wanted:
        for place in places[serving.name]:
            environment = [f"{name}={shlex.quote(v)}" for name, v in server_environment(serving, place).items()]
            yield " ".join([*environment, shlex.join(server_command(serving, place, "PORT"))])
