"""Inference without a server: the same engine core and the same processors, in the caller's process and thread."""
