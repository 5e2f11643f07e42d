"""Talking to a language model: conversations as token ids, engines, structured output."""
