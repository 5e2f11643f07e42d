"""`python -m index_build`: commands/index.py."""

from commands.arguments import run_command
from commands.index import main

if __name__ == "__main__":
    run_command(main)
