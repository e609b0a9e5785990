import numpy as np
import torch

from roundhouse.runner import prompt_logprobs
from roundhouse.runner.prompt_logprobs import PromptLogprobsRow

CPU = torch.device("cpu")
LOGITS = torch.randn(12, 7, generator=torch.Generator().manual_seed(0))


def test_chunks_fill_the_rows_in_order_and_in_slices() -> None:
    asked: list[int] = []

    def logits_of(indices: torch.Tensor) -> torch.Tensor:
        asked.append(len(indices))
        return LOGITS[indices]

    tokens = np.array([3, 1, 4, 1, 5], dtype=np.int32)
    row = PromptLogprobsRow(num_prompt_tokens=6, k=2)
    row.add_chunk(0, tokens[:4], 8, logits_of, CPU)
    row.add_chunk(4, tokens[4:], 2, logits_of, CPU)
    rows = row.finish()

    exact = torch.log_softmax(LOGITS[[8, 9, 10, 11, 2]], dim=1).numpy()
    assert asked == [1, 3, 1]
    assert rows.token_ids[:, 0].tolist() == tokens.tolist()
    assert rows.token_ids[:, 1:].tolist() == np.argsort(-exact, axis=1)[:, :2].tolist()
    np.testing.assert_allclose(rows.logprobs, np.take_along_axis(exact, rows.token_ids.astype(int), axis=1), atol=1e-6)
    assert rows.ranks.tolist() == [
        int((line > line[token]).sum()) + 1 for line, token in zip(exact, tokens, strict=True)
    ]


def test_a_slice_is_bounded_by_its_logits() -> None:
    wide = torch.zeros(1, 2**18).expand(200, -1)
    row = PromptLogprobsRow(num_prompt_tokens=151, k=0)
    sizes: list[int] = []

    def logits_of(indices: torch.Tensor) -> torch.Tensor:
        sizes.append(len(indices))
        return wide[indices]

    row.add_chunk(0, np.zeros(150, dtype=np.int32), 0, logits_of, CPU)
    assert max(sizes) * 2**18 <= prompt_logprobs.LOGITS_PER_SLICE
    assert sum(sizes) == 150
