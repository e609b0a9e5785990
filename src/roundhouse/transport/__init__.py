"""Sockets, threads and event-loop readers that carry `protocol`. Knows neither the frontend nor the engine above it."""
