"""`ratchet selftrain`: commands/selftrain.py."""

from commands.arguments import run_command
from commands.selftrain import main

if __name__ == "__main__":
    run_command(main)
