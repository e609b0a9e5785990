import numpy as np

from roundhouse.runner.attention import AttentionMetadata


def test_lengths_follow_from_starts_and_contexts() -> None:
    metadata = AttentionMetadata(
        query_starts=np.array([0, 3, 4]),
        context_lens=np.array([0, 9]),
        block_tables=np.zeros((2, 3), dtype=np.int32),
        slots=np.zeros(4, dtype=np.int64),
        block_size=4,
    )
    assert (metadata.query_lens.tolist(), metadata.seq_lens.tolist()) == ([3, 1], [3, 10])
