"""`python -m retrieval`: commands/search.py."""

from commands.arguments import run_command
from commands.search import main

if __name__ == "__main__":
    run_command(main)
