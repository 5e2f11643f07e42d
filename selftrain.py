"""`python selftrain.py`: the command `ratchet selftrain`."""

import sys

from ratchet.commands.main import run_command, run_row


def main() -> None:
    """Run the command with the arguments of the process."""
    run_row("selftrain", sys.argv[1:], "python selftrain.py")


if __name__ == "__main__":
    run_command(main)
