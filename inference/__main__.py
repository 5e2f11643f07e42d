"""`python -m inference`: commands/model.py."""

from commands.arguments import run_command
from commands.model import main

if __name__ == "__main__":
    run_command(main)
