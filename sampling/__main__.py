"""`python -m sampling`: commands/sample.py."""

from commands.arguments import run_command
from commands.sample import main

if __name__ == "__main__":
    run_command(main)
