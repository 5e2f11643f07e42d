"""`python -m agents`: commands/ask.py."""

from commands.arguments import run_command
from commands.ask import main

if __name__ == "__main__":
    run_command(main)
