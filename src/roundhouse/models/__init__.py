"""Models: a folder of safetensors → a causal language model that asks us for its attention. Knows no runner."""
