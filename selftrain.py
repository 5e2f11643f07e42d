"""`ratchet selftrain`: commands/selftrain.py."""

from ratchet.commands.arguments import run_command
from ratchet.commands.selftrain import main

if __name__ == "__main__":
    run_command(main)
