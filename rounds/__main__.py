"""`python -m rounds`: commands/rounds.py."""

from commands.arguments import run_command
from commands.rounds import main

if __name__ == "__main__":
    run_command(main)
