"""`python -m evaluation`: commands/evaluate.py."""

from commands.arguments import run_command
from commands.evaluate import main

if __name__ == "__main__":
    run_command(main)
