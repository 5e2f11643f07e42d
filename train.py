"""`python train.py`: the command `ratchet train`."""

import sys

from ratchet.commands.main import run_command, run_row


def main() -> None:
    """Run the command with the arguments of the process."""
    run_row("train", sys.argv[1:], "train.py")


if __name__ == "__main__":
    run_command(main)
