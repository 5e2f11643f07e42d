"""Take a run's results along: ratchet export --config X [--round N | --adapter DIR] --merged --dataset ...

Each form is a folder below --out. An interrupted export is finished by the same command.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.commands.config import round_or_best
from ratchet.commands.recording import outdated_inputs
from ratchet.core.config import Config, load_members
from ratchet.core.errors import UserError
from ratchet.core.escape import file_name
from ratchet.core.locks import Lock
from ratchet.core.runfolder import RoundFolder, RunFolder

if TYPE_CHECKING:
    from ratchet.export.dataset import Scope


def export(config: Config, given: argparse.Namespace) -> None:
    """Write the forms that the options name, and print where they are."""
    if not (given.adapter_only or given.merged or given.dataset):
        raise UserError("nothing to export: name --adapter-only, --merged or --dataset")
    if given.dataset and given.adapter:
        raise UserError("--dataset exports the data of a round; give --round instead of --adapter")
    run = RunFolder(config.folder)
    own = round_or_best(run, given.round)
    label = file_name(f"adapter-{given.adapter.resolve().name}") if given.adapter else own.path.name
    out = given.out or run.path / "export" / label
    outdated = _outdated(config, given, own)
    from ratchet.export.folders import note_anyway

    with Lock(out / ".export.lock", str(out)):
        for folder in _export(config, given, own, out, file_name(f"{run.path.name}-{label}")):
            note_anyway(folder, outdated)
            print(f"written to {folder}")


def _outdated(config: Config, given: argparse.Namespace, own: RoundFolder) -> str:
    found = []
    if given.dataset:
        found.append(outdated_inputs(config, "train", number=own.number, anyway=given.anyway))
    if given.adapter_only or given.merged:
        found.append(outdated_inputs(config, adapter=given.adapter or own.adapter, anyway=given.anyway))
    return next(filter(None, found), "")


def _export(config: Config, given: argparse.Namespace, own: RoundFolder, out: Path, name: str) -> list[Path]:
    folders: list[Path] = []
    if given.adapter_only or given.merged:
        adapter = given.adapter or own.adapter
        from ratchet.export.weights import export_adapter, export_merged, open_trained_model

        trained = config.training.model
        model = open_trained_model(adapter, trained, config.models[trained], name, given.base_id)
        if given.adapter_only:
            systems = {member: settings.system for member, settings in load_members(config).items()}
            folders.append(export_adapter(model, systems, out))
        if given.merged:
            folders.append(export_merged(model, out, given.dtype or model.base.dtype))
    if given.dataset:
        folders.append(_export_dataset(config, own, given.dataset, out))
    return folders


def _export_dataset(config: Config, own: RoundFolder, scope: Scope, out: Path) -> Path:
    from ratchet.export.dataset import DatasetMember, export_dataset
    from ratchet.training.rows import prepare_rows

    members = [
        DatasetMember(name, member, RoundFolder(member.folder / own.path.name))
        for name, member in load_members(config).items()
    ]
    rows = None
    if scope == "kept" or all(member.selection and member.selection.kept for member in members):
        rows = prepare_rows(config, own)
    return export_dataset(config.folder.name, own.number, scope, members, rows, out)
