from random import Random

from tests.fuzz.mutation import MAX_INPUT_BYTES, mutate_bytes, mutate_json, mutate_msgpack


def test_a_seed_names_the_change() -> None:
    for mutate in (mutate_bytes, mutate_json, mutate_msgpack):
        data = b'{"a": [1, "b"]}'
        changed = [mutate(data, Random(seed)) for seed in range(50)]
        assert changed == [mutate(data, Random(seed)) for seed in range(50)]
        assert len(set(changed)) > 10


def test_changes_that_follow_each_other_do_not_grow_without_end() -> None:
    data = b'{"a": [[1, 2], {"b": "c"}]}'
    rng = Random(1)
    for _ in range(60):
        data = mutate_json(data, rng)
        assert len(data) < MAX_INPUT_BYTES
