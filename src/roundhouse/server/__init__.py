"""The HTTP surface: parses and refuses, calls `AsyncLLM`, streams. Everything it needs is injected; see `state`."""
