import pytest
import torch

from roundhouse.runner.log_mass import log_mass


@pytest.mark.parametrize("vocab_size", [101, 49152])
def test_a_row_has_the_same_bits_whatever_stands_beside_it(vocab_size: int) -> None:
    # A sum in another order changes the last bit of one row in thirty.
    logits = 5 * torch.randn(96, vocab_size, generator=torch.Generator().manual_seed(2))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together = log_mass(logits)
        for start, end in [(3, 5), (7, 96), *((row, row + 1) for row in range(96))]:
            assert torch.equal(log_mass(logits[start:end].contiguous()), together[start:end])
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(together[:, 0], logits.double().logsumexp(dim=1).float())
