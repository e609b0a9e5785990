import torch

from roundhouse.models.inspection import LayerShape
from roundhouse.runner.kv_store import KVFacts, KVStore, kv_facts

CPU = torch.device("cpu")


def layer(num_kv_heads: int = 3, key_size: int = 64, value_size: int = 64) -> LayerShape:
    return LayerShape(num_kv_heads, key_size, value_size, 9, window=None, has_softcap=False, has_sinks=False)


def test_facts_of_equal_layers() -> None:
    assert kv_facts([layer()] * 30, torch.bfloat16, 16) == KVFacts(
        num_layers=30,
        num_kv_heads=3,
        head_size=64,
        dtype_bytes=2,
        block_size=16,
        bytes_per_block=30 * 2 * 3 * 64 * 2 * 16,
    )


def test_bytes_of_layers_that_differ() -> None:
    facts = kv_facts([layer(1, 8, 4), layer(2, 6, 6)], torch.float32, 4)
    assert facts.bytes_per_block == (1 * (8 + 4) + 2 * (6 + 6)) * 4 * 4


def test_the_store_takes_what_the_facts_say() -> None:
    layers = [layer(1, 8, 4), layer(2, 6, 6)]
    store = KVStore(layers, num_blocks=5, block_size=4, dtype=torch.float32, device=CPU)
    total = sum(tensor.nbytes for tensor in (*store.keys, *store.values))
    assert total == 5 * kv_facts(layers, torch.float32, 4).bytes_per_block
    assert [tuple(tensor.shape) for tensor in (*store.keys, *store.values)] == [
        (5, 4, 1, 8),
        (5, 4, 2, 6),
        (5, 4, 1, 4),
        (5, 4, 2, 6),
    ]


def test_keys_and_values_go_to_their_slots() -> None:
    store = KVStore([layer(1, 2, 1)], num_blocks=2, block_size=2, dtype=torch.float32, device=CPU)
    store.write(0, torch.tensor([3, 0]), torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]), torch.tensor([[[5.0]], [[6.0]]]))
    assert store.keys[0].flatten(0, 1)[:, 0].tolist() == [[3, 4], [0, 0], [0, 0], [1, 2]]
    assert store.values[0].flatten().tolist() == [6, 0, 0, 5]


def test_only_blocks_that_are_not_finite_are_cleared() -> None:
    store = KVStore([layer(1, 1, 1)], num_blocks=4, block_size=2, dtype=torch.float32, device=CPU)
    for tensor in (store.keys[0], store.values[0]):
        tensor.fill_(1.0)
    store.keys[0][1, 0] = float("nan")
    store.values[0][2, 1] = float("inf")
    store.keys[0][3, 1] = float("nan")
    store.clear_not_finite([0, 1, 2])
    assert store.keys[0][:3].sum(dim=(1, 2, 3)).tolist() == [2, 0, 2]
    assert store.values[0].sum(dim=(1, 2, 3)).tolist() == [2, 2, 0, 2]
    assert store.keys[0][3].isnan().any()
