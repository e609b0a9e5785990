from __future__ import annotations

import pytest

from tests.bench.errors import BenchError
from tests.bench.peer_llama_cpp import contents, processor, with_tile_config_in_memory

CPUINFO = """\
processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Some Xeon @ 2 GHz
cpu MHz\t\t: 2100.123
flags\t\t: fpu amx_tile avx512f
power management:

processor\t: 1
model name\t: Another
flags\t\t: fpu
"""


def test_processor_is_the_first_ones_name_and_flags_in_order() -> None:
    assert processor(CPUINFO) == "Some Xeon @ 2 GHz amx_tile avx512f fpu"


def test_processor_does_not_depend_on_what_changes_by_itself() -> None:
    assert processor(CPUINFO.replace("2100.123", "900.0")) == processor(CPUINFO)


def test_another_processor_is_other_contents() -> None:
    assert contents(CPUINFO) != contents(CPUINFO.replace("amx_tile ", ""))


def test_the_tile_configuration_reaches_memory_before_it_is_loaded() -> None:
    source = "void f(void) {\n    tc.rows[0] = 8;\n\n    _tile_loadconfig(&tc);\n    done = true;\n}\n"
    assert with_tile_config_in_memory(source) == (
        "void f(void) {\n    tc.rows[0] = 8;\n\n"
        '    asm volatile("" : : "r"(&tc) : "memory");\n'
        "    _tile_loadconfig(&tc);\n    done = true;\n}\n"
    )


def test_sources_without_that_load_are_refused() -> None:
    with pytest.raises(BenchError, match="loads no tile configuration"):
        with_tile_config_in_memory("void f(void) {}\n")
