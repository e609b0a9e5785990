"""Which number type a model computes in."""

from __future__ import annotations

import torch

from roundhouse.protocol.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_dtype(name: str, *, stored: torch.dtype, device: str, cpu_has_bfloat16: bool) -> torch.dtype:
    """`name` is 'auto' or one of `DTYPES`; `stored` is the type of the weights in their files."""
    if name != "auto":
        if name not in DTYPES:
            raise ConfigError(f"dtype must be auto, {', '.join(DTYPES)}, got {name}")
        return DTYPES[name]
    if device != "cpu":
        return torch.bfloat16 if stored is torch.float32 else stored
    return torch.bfloat16 if stored is torch.bfloat16 and cpu_has_bfloat16 else torch.float32


def cpu_has_bfloat16() -> bool:
    """Whether matrix products in bfloat16 have instructions of their own here; without them they are emulated."""
    capabilities = torch.backends.cpu.get_cpu_capability()
    return bool(capabilities) and torch.ops.mkldnn._is_mkldnn_bf16_supported()
