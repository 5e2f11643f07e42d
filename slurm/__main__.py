"""`python -m slurm`: commands/slurm.py."""

from commands.arguments import run_command
from commands.slurm import main

if __name__ == "__main__":
    run_command(main)
