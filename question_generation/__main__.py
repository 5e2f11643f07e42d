"""`python -m question_generation`: commands/generate.py."""

from commands.arguments import run_command
from commands.generate import main

if __name__ == "__main__":
    run_command(main)
