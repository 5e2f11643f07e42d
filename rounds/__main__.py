"""What belongs to the loop over rounds (`python selftrain.py`) and not to one of its stages.

python -m rounds promote --config X --round 2     does round 2's adapter take its parent's place? Decided on dev
python -m rounds trace --config X QUESTION_ID     one question through every round: sampled, scored, kept, trained
"""

from __future__ import annotations

import argparse

from ratchet.command import add_config_arguments, add_phase_argument, config_of, run_command
from ratchet.errors import UserError
from ratchet.runfolder import open_run


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m rounds", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    promoting = actions.add_parser("promote", help="evaluate base, parent and candidate on dev, and decide")
    add_config_arguments(promoting)
    promoting.add_argument("--round", type=int, required=True, help="the round whose adapter is the candidate")
    add_phase_argument(promoting)
    tracing = actions.add_parser("trace", help="one question through every round")
    add_config_arguments(tracing)
    tracing.add_argument("question", help="the question's id")
    arguments = parser.parse_args()
    config = config_of(arguments)
    if config.members:
        raise UserError("members: this config has some, which run one round; there is nothing to promote")
    if arguments.action == "trace":
        from rounds.trace import print_trace

        return print_trace(config, arguments.question)
    from rounds.promotion import promote, sample_arms

    run = open_run(config)
    if arguments.phase == "sample":
        return sample_arms(config, run, arguments.round)
    print(promote(config, run, arguments.round, sampled=arguments.phase == "score").reason)


if __name__ == "__main__":
    run_command(main)
