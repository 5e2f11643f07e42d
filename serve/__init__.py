"""The systems of a config as services: an OpenAI-compatible endpoint, MCP tools, and a page to ask and compare."""
