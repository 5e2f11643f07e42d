"""What retrieval raises."""

from __future__ import annotations


class SourceError(Exception):
    """A service cannot be reached, or keeps refusing, after all retries.

    An agent that can go on without it is told so (`agents.core.tools`); else the trajectory fails and is sampled again.
    """
