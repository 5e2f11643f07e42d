"""The code that every room shares: records, configuration, durable files, the run folder, progress and errors."""
