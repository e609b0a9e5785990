import pytest
import torch

from roundhouse.models.dtype import choose_dtype, cpu_has_bfloat16
from roundhouse.protocol.errors import ConfigError

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@pytest.mark.parametrize(
    ("name", "stored", "device", "has_bfloat16", "chosen"),
    [
        ("auto", BF16, "cpu", True, BF16),
        ("auto", BF16, "cpu", False, FP32),
        ("auto", FP16, "cpu", True, FP32),
        ("auto", FP32, "cpu", True, FP32),
        ("auto", BF16, "cuda", False, BF16),
        ("auto", FP16, "cuda", False, FP16),
        ("auto", FP32, "cuda", False, BF16),
        ("float16", BF16, "cpu", True, FP16),
        ("float32", BF16, "cuda", True, FP32),
    ],
)
def test_the_choice(name: str, stored: torch.dtype, device: str, has_bfloat16: bool, chosen: torch.dtype) -> None:
    assert choose_dtype(name, stored=stored, device=device, cpu_has_bfloat16=has_bfloat16) is chosen


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="got int4"):
        choose_dtype("int4", stored=BF16, device="cpu", cpu_has_bfloat16=True)


def test_the_cpu_can_be_asked() -> None:
    assert cpu_has_bfloat16() in (True, False)
