"""`python -m ratchet`: commands/main.py."""

from ratchet.commands.main import main

if __name__ == "__main__":
    main()
