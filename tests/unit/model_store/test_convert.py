import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roundhouse.model_store.convert import convert_gguf
from roundhouse.model_store.errors import ConversionFailed
from roundhouse.model_store.folder import check_folder
from tests.unit.model_store import tiny


def convert(tmp_path: Path, **changes: Any) -> tuple[Path, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    folder = tmp_path / "out"
    folder.mkdir()
    source = tiny.write_gguf(tmp_path / "m.gguf", tiny.metadata(**changes))
    convert_gguf(source, folder, lambda **event: events.append(event))
    return folder, events


def weights(folder: Path) -> dict[str, np.ndarray]:
    """The file's bfloat16 tensors, widened to float32."""
    data = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    found = {}
    for name, spec in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        assert spec["dtype"] == "BF16"
        start, end = (8 + length + offset for offset in spec["data_offsets"])
        bits = np.frombuffer(data[start:end], np.uint16).astype(np.uint32) << 16
        found[name] = bits.view(np.float32).reshape(spec["shape"])
    return found


def test_a_llama_becomes_a_whole_folder(tmp_path: Path) -> None:
    folder, events = convert(tmp_path)
    check_folder(folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    total = 2 * sum(int(np.prod(shape)) for shape in tiny.llama_shapes().values())
    assert events[0] == {"stage": "converting the weights to safetensors", "done": 0, "total": total}
    assert events[-1] == {"stage": "converting the weights to safetensors", "done": total, "total": total}
    assert len(events) == len(tiny.llama_shapes()) + 1


def test_values_keep_their_place_and_rows_of_heads_return_to_halves(tmp_path: Path) -> None:
    found = weights(convert(tmp_path)[0])
    rows = np.arange(64, dtype=np.float32).reshape(8, 8)
    np.testing.assert_array_equal(found["model.layers.0.self_attn.o_proj.weight"], rows)
    # Two query heads of four rows and one key head: even rows of a head first, then the odd ones.
    np.testing.assert_array_equal(found["model.layers.0.self_attn.q_proj.weight"], rows[[0, 2, 1, 3, 4, 6, 5, 7]])
    np.testing.assert_array_equal(found["model.layers.0.self_attn.k_proj.weight"], rows[[0, 2, 1, 3]])
    np.testing.assert_array_equal(found["model.norm.weight"], np.arange(8, dtype=np.float32))


def test_rounding_is_to_the_nearest_and_even(tmp_path: Path) -> None:
    embedding = weights(convert(tmp_path)[0])["model.embed_tokens.weight"].ravel()
    assert [embedding[index] for index in (255, 256, 257, 258, 259, 513, 514)] == [255, 256, 256, 258, 260, 512, 512]


def test_weights_that_are_not_numbers_are_refused(tmp_path: Path) -> None:
    source = tiny.write_gguf(tmp_path / "m.gguf", tiny.metadata())
    source.write_bytes(source.read_bytes()[:-4] + struct.pack("<f", float("nan")))
    with pytest.raises(ConversionFailed, match=r"tensor blk\.0\.ffn_down\.weight holds values that are not finite"):
        convert_gguf(source, tmp_path, lambda **event: None)


def test_a_tensor_cut_short_is_refused(tmp_path: Path) -> None:
    source = tiny.write_gguf(tmp_path / "m.gguf", tiny.metadata())
    source.write_bytes(source.read_bytes()[:-4])
    with pytest.raises(ConversionFailed, match=r"tensor blk\.0\.ffn_down\.weight of .* cannot be read"):
        convert_gguf(source, tmp_path, lambda **event: None)


def test_a_tensor_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    source = tiny.write_gguf(tmp_path / "m.gguf", tiny.metadata())
    kind = source.read_bytes().index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 16
    data = bytearray(source.read_bytes())
    data[kind] = 200
    source.write_bytes(data)
    with pytest.raises(ConversionFailed, match="200 is not a valid GGMLQuantizationType"):
        convert_gguf(source, tmp_path, lambda **event: None)


def test_one_part_of_a_split_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversionFailed, match="is one part of a split model; join the parts"):
        convert(tmp_path, split__count=3)


def test_positions_scaled_by_rules_that_are_not_converted_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversionFailed) as caught:
        convert(tmp_path, llama__rope__scaling__type="yarn")
    assert caught.value.message == (
        "m.gguf scales its positions in a way that is not converted (yarn, []); use the model's safetensors repository"
    )
