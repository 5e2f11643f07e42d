"""`python -m serve`: commands/serve.py."""

from commands.arguments import run_command
from commands.serve import main

if __name__ == "__main__":
    run_command(main)
