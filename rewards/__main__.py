"""`python -m rewards`: commands/score.py."""

from commands.arguments import run_command
from commands.score import main

if __name__ == "__main__":
    run_command(main)
