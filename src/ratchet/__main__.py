"""`python -m ratchet`: the same as `ratchet`."""

from ratchet.commands.main import main

if __name__ == "__main__":
    main()
