"""ratchet serve-models: vLLM servers for a config's models, and a command that uses them."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ratchet.commands.arguments import add_card_arguments, add_config_arguments, card_asked, config_of
from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.escape import shell_line
from ratchet.inference.engines import concurrency_variable, url_variable
from ratchet.inference.footprint import footprint
from ratchet.inference.serving.devices import Card, Gpu, available_memory, keep_free, planned_gpus, visible_gpus
from ratchet.inference.serving.memory import assign_gpus, placement_lines, plan_cpu_memory
from ratchet.inference.serving.server import Server, ServingFailed, Supervisor, print_status, reserve_port
from ratchet.inference.serving.specs import GB, Placement, ServerSpec, server_command, server_environment, server_specs

DESCRIPTION = """Start vLLM servers for the models that have engine: vllm and no url, wait until they are ready, run
COMMAND with their addresses and key in its environment, stop them, and exit with COMMAND's status. Without COMMAND they
run until a signal."""


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `ratchet serve-models`."""
    add_config_arguments(parser)
    parser.add_argument("--models", metavar="A,B", help="serve only these models of the config")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the commands and the memory of each server, and start nothing; without --models and COMMAND, for "
        "the stages of `ratchet selftrain`, which serves the models of one stage at a time",
    )
    add_card_arguments(parser, "with --dry-run: ")


def serve(arguments: argparse.Namespace, command: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    config = config_of(arguments)
    card = card_asked(arguments)
    if card and not arguments.dry_run:
        raise UserError("--gpu and --gpu-gb plan for another machine: add --dry-run")
    chosen = arguments.models.split(",") if arguments.models else None
    specs = _specs(config, chosen)
    if not specs and not command:
        raise UserError(f"{arguments.config}: no model has engine: vllm and no url, so there is nothing to serve")
    if arguments.dry_run:
        stages = {} if chosen or command else _stages_by_models(config, specs)
        planned = planned_gpus(arguments.gpus, card.gb) if card else None
        print("\n".join(_dry_run(config, stages or {tuple(chosen or ()): ""}, planned)))
        if command:
            print(f"then: {shell_line(command)}")
        return 0
    keys = _keys(specs, bool(command))
    placements, lines = _placements(specs, config, None)
    for line in lines:
        print_status(line)
    addresses: dict[str, str] = {}
    servers: list[Server] = []
    devices: dict[str, tuple[str, ...]] = {}
    with contextlib.ExitStack() as ports:
        for spec in specs:
            key = keys[spec.model.api_key_env]
            placement = placements[spec.name]
            server = _server(Path(config.run), spec, placement, ports.enter_context(reserve_port()), key)
            servers.append(server)
            devices[server.title] = placement.gpus or ("cpu",)
            addresses |= {url_variable(name): server.url for name in spec.names}
            held = str(placement.concurrency * spec.settings.copies)
            addresses |= {concurrency_variable(name): held for name in spec.names}

        def ready() -> None:
            if not command:
                print("\n".join(f"export {name}={value}" for name, value in addresses.items()), flush=True)

        try:
            return asyncio.run(Supervisor(servers, devices).run(command, {**os.environ, **addresses, **keys}, ready))
        except ServingFailed as error:
            print(f"error: {error}", file=sys.stderr)
            return 1


def planned_memory(config: Config, models: Sequence[str], card: Card, gpus: int) -> list[str]:
    """The arithmetic of the servers of these models on a node with such GPUs. UserError where they do not fit."""
    return _placements(_specs(config, models), config, planned_gpus(gpus, card.gb))[1]


def _specs(config: Config, chosen: Sequence[str] | None) -> list[ServerSpec]:
    from ratchet.rounds.plan import model_uses  # late: --help needs no stages

    return server_specs(config, chosen, model_uses(config))


def _placements(
    specs: Sequence[ServerSpec], config: Config, planned: Sequence[Gpu] | None
) -> tuple[dict[str, Placement], list[str]]:
    """The placements of every server by spec name, and the lines of the arithmetic. `planned`: GPUs in place of this
    machine's."""
    from ratchet.retrieval.footprint import encoder_memory  # late: --help needs no index

    if not specs:
        return {}, []
    sizes = {s.name: footprint(s.model.path, s.model.revision, s.model.dtype) for s in specs}
    gpus = list(planned or ())
    if planned is None:
        accelerated = [spec for spec in specs if spec.model.device != "cpu"]
        gpus = visible_gpus(accelerated[0].settings.python) if accelerated else []
    on_gpu = [spec for spec in specs if gpus and spec.model.device != "cpu"]
    on_cpu = [spec for spec in specs if spec not in on_gpu]
    encoders = encoder_memory(config) if on_gpu else []
    gpus = keep_free(gpus, [(encoder.device, encoder.size) for encoder in encoders])
    placements = assign_gpus(on_gpu, sizes, gpus) | plan_cpu_memory(on_cpu, sizes, available_memory())
    kept = [
        f"GPU {gpu.name}: {gpu.kept / GB:.1f} GB kept free for encoders of the command: "
        + ", ".join(f"{encoder.key} {encoder.size / GB:.1f} GB" for encoder in encoders)
        for gpu in gpus
        if gpu.kept
    ]
    return placements, [*kept, *placement_lines(specs, sizes, placements)]


def _keys(specs: Sequence[ServerSpec], has_command: bool) -> dict[str, str]:
    """The key of every api_key_env: the variable's value, or a new random key for the command."""
    keys = {spec.model.api_key_env: os.environ.get(spec.model.api_key_env, "") for spec in specs}
    for name, key in keys.items():
        if not key and not has_command:
            raise UserError(
                f"{name} is not set: clients of the servers need this key, which is never printed. Set the key for "
                f"the servers and for the clients, such as: export {name}=$(openssl rand -hex 32)"
            )
    return {name: key or secrets.token_urlsafe(32) for name, key in keys.items()}


def _server(folder: Path, spec: ServerSpec, placement: Placement, port_socket: socket.socket, key: str) -> Server:
    # Jobs of an array share the run folder, but each has its own servers.
    job = os.environ.get("SLURM_JOB_ID")
    return Server(
        title=spec.name,
        command=server_command(spec, placement, port_socket.getsockname()[1]),
        environment={**server_environment(spec, placement), "VLLM_API_KEY": key},
        served_name=spec.served_name,
        log=folder / "servers" / (f"{spec.name}.{job}.log" if job else f"{spec.name}.log"),
        port_socket=port_socket,
    )


def _stages_by_models(config: Config, specs: Sequence[ServerSpec]) -> dict[tuple[str, ...], str]:
    """By the models that are served together, which stages of the loop they are served for; models that none asks are
    alone. Empty where the config has no stages of its own."""
    from ratchet.commands.recording import planned_stages  # late: --help needs no stages

    stages = [] if config.members else [stage for stage in planned_stages(config) if stage.models]
    titles: dict[tuple[str, ...], dict[str, None]] = {}
    for stage in stages:
        titles.setdefault(stage.models, {})[stage.title] = None
    asked = {name for models in titles for name in models}
    others = {spec.names: "no stage of the loop" for spec in specs if stages and asked.isdisjoint(spec.names)}
    return {models: "; ".join(shown) for models, shown in titles.items()} | others


def _dry_run(config: Config, stages: Mapping[tuple[str, ...], str], planned: Sequence[Gpu] | None) -> Iterator[str]:
    """The memory and the commands of the servers of each set of models. `stages`: what each set is served for."""
    for models, shown in stages.items():
        specs = _specs(config, models or None)
        try:
            placements, lines = _placements(specs, config, planned)
        except UserError as error:
            raise UserError(f"{shown}: {error}" if shown else str(error)) from error
        if shown:
            yield f"{', '.join(models)} ({shown}):"
        yield from lines
        yield from _commands(specs, placements)


def _commands(specs: Sequence[ServerSpec], placements: dict[str, Placement]) -> Iterator[str]:
    for spec in specs:
        placement = placements[spec.name]
        environment = [f"{name}={shell_line([v])}" for name, v in server_environment(spec, placement).items()]
        yield " ".join([*environment, shell_line(server_command(spec, placement, "PORT"))])
