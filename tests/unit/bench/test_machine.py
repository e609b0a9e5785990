from __future__ import annotations

from tests.bench.machine import cpu_facts


def test_the_first_processor_speaks_for_all() -> None:
    cpuinfo = (
        "processor\t: 0\nmodel name\t: A Fast One\nflags\t\t: fpu avx2 amx_bf16 avx512f\n\n"
        "processor\t: 1\nmodel name\t: Another\nflags\t\t: fpu\n"
    )
    assert cpu_facts(cpuinfo) == {"cpu": "A Fast One", "instruction_sets": ["avx2", "avx512f", "amx_bf16"]}


def test_a_processor_without_a_name() -> None:
    facts = cpu_facts("processor\t: 0\nFeatures\t: fp asimd\n")
    assert facts["cpu"] != ""
    assert facts["instruction_sets"] == []
