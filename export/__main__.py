"""`python -m export`: commands/export.py."""

from commands.arguments import run_command
from commands.export import main

if __name__ == "__main__":
    run_command(main)
