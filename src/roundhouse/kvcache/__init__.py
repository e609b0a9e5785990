"""Which block of the KV cache holds which tokens. Pure bookkeeping of ids and counts: the tensors are the runner's."""
