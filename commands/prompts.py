"""ratchet prompts --config X.yaml --out DIR: write the prompts that a config's system or judge uses, to edit them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ratchet.agents.core.prompts import write_prompts
from ratchet.agents.core.system import load_system
from ratchet.commands.arguments import config_of, config_parser
from ratchet.core.errors import UserError, did_you_mean
from ratchet.rewards.prompts import judge_prompts

REWARDS = "rewards"
"""The key of the judge's prompts."""


def main(words: Sequence[str], prog: str = "ratchet prompts") -> None:
    """Write one file for each prompt, and say how a config names the folder."""
    parser = config_parser(prog, "Write the prompts that a config's system uses, one file for each, to edit them.")
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write; no file in it is overwritten")
    parser.add_argument(
        "--system",
        default="system",
        metavar="KEY",
        help=f"the system's key in the config, such as evaluation.baselines.NAME, or {REWARDS} for the judge's prompts "
        "(default: system)",
    )
    given = parser.parse_args(words)
    config = config_of(given)
    keys = [*config.systems, REWARDS]
    if given.system not in keys:
        raise UserError(f"--system {given.system}: the config has no such system{did_you_mean(given.system, keys)}")
    if given.system == REWARDS:
        name, prompts = "the judge", judge_prompts(config.rewards)
    else:
        system = load_system(config.systems[given.system], given.system)
        name, prompts = system.name, system.prompts
    folder = Path(given.out)
    files = list(write_prompts(prompts, folder))
    print(
        f"{len(files)} prompts of {name} are in {folder}; edit them, delete the files that "
        "you do not change, and add to the config:"
    )
    print(f"{given.system}.prompts: {folder}")
