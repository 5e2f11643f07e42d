"""Agent systems, one file or folder each, and what they share: loading them, their tools, and one episode."""
