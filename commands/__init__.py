"""Every command line, the opening of configs with their plug-ins, and the recording of stages in the run's ledger."""
