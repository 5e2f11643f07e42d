"""python -m evaluation --config X [--round 1] [--split test] [--adapter DIR | --base-only]

Runs the base model, the round's adapter and the config's baselines on held-out questions, and prints base against
trained. `python -m evaluation table --config X` makes the table again from what is stored, without a model.
"""

from __future__ import annotations

from pathlib import Path

from evaluation.compare import evaluate, results_path, tabulate
from evaluation.table import print_results
from ratchet.command import config_of, config_parser, run_command
from ratchet.errors import UserError
from ratchet.runfolder import open_run


def main() -> None:
    parser = config_parser("python -m evaluation", "Compare the base model with the trained one on held-out questions.")
    parser.add_argument(
        "action", nargs="?", choices=("run", "table"), default="run", help="table: from stored records, without a model"
    )
    parser.add_argument("--round", type=int, default=1, help="which round's adapter (default 1)")
    parser.add_argument("--split", choices=("train", "dev", "test"), help="default: the config's evaluation.split")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--adapter", type=Path, help="another adapter folder than the round's")
    which.add_argument("--base-only", action="store_true", help="measure the base model and the baselines alone")
    arguments = parser.parse_args()
    config = config_of(arguments)
    split = arguments.split or config.evaluation.split
    folder = open_run(config).round(arguments.round)
    if arguments.action == "table":
        if arguments.adapter or arguments.base_only:
            parser.error("table shows the stored arms; --adapter and --base-only belong to a run")
        results = tabulate(config, folder, arguments.round, split)
    else:
        adapter = None if arguments.base_only else arguments.adapter or folder.adapter
        if adapter is not None and not (adapter / "adapter_config.json").exists():
            raise UserError(
                f"{adapter}: there is no adapter here; train one first (accelerate launch train.py), "
                "or measure the base model alone with --base-only"
            )
        results = evaluate(config, folder, arguments.round, split, adapter)
    print_results(results)
    print(f"written to {results_path(folder, config, split)}")


if __name__ == "__main__":
    run_command(main)
