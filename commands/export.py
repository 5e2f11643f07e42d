"""Take a run's results along: ratchet export --config X [--round N | --adapter DIR] --merged --dataset ...

Each form is a folder below --out. An interrupted export is finished by the same command.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.commands.arguments import (
    add_anyway_argument,
    add_best_round_argument,
    config_of,
    config_parser,
    outdated_inputs,
    round_or_best,
)
from ratchet.core.config import Config, load_members
from ratchet.core.errors import UserError
from ratchet.core.escape import file_name
from ratchet.core.locks import Lock
from ratchet.core.runfolder import RoundFolder, RunFolder

if TYPE_CHECKING:
    from ratchet.export.dataset import Scope

ABOUT = "Export a run's adapter, merged weights or trajectories."


def main(words: Sequence[str] | None = None, prog: str = "ratchet export") -> None:
    """Export the forms that the options name; see the top of this file."""
    parser = config_parser(prog, ABOUT)
    which = parser.add_mutually_exclusive_group()
    add_best_round_argument(which, "the round whose adapter or trajectories are exported")
    which.add_argument("--adapter", type=Path, metavar="DIR", help="export this adapter instead of a round's")
    forms = parser.add_argument_group("forms, at least one")
    forms.add_argument("--adapter-only", action="store_true", help="the adapter, for PEFT, with card and prompts")
    forms.add_argument("--merged", action="store_true", help="base + adapter as safetensors, for transformers and vLLM")
    forms.add_argument(
        "--dataset",
        nargs="?",
        const="kept",
        choices=["kept", "all"],
        help="the round's kept trajectories (default), or all, and its token rows, for `datasets`",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: a folder below export/ of the run folder")
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16", "float16"], help="of --merged (default: the config's)"
    )
    parser.add_argument("--base-id", default="", metavar="ID", help="the base model's name on the hub, for the cards")
    add_anyway_argument(parser)
    given = parser.parse_args(words)
    if not (given.adapter_only or given.merged or given.dataset):
        raise UserError("nothing to export: name --adapter-only, --merged or --dataset")
    if given.dataset and given.adapter:
        raise UserError("--dataset exports the data of a round; give --round instead of --adapter")
    export(config_of(given), given)


def export(config: Config, given: argparse.Namespace) -> None:
    """Write the forms that were asked for, and print where they are."""
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
    """What is out of date of what is exported: of the round's selection, and of the adapter. UserError as in
    `outdated_inputs`."""
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
    from ratchet.training.kept import learnt_rounds
    from ratchet.training.rows import prepare_rows

    members = [
        DatasetMember(name, member, RoundFolder(member.folder / own.path.name))
        for name, member in load_members(config).items()
    ]
    rows = None
    if scope == "kept" or all(member.selection and member.selection.kept for member in members):
        rows, _ = prepare_rows(learnt_rounds(config, own), own.rows, config.training)
    return export_dataset(config.folder.name, own.number, scope, members, rows, out)
