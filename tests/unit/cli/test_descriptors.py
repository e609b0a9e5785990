import resource
from collections.abc import Iterator

import pytest

from roundhouse.cli.descriptors import ENOUGH, raise_descriptor_limit


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_is_raised_as_far_as_it_goes(limits: tuple[int, int]) -> None:
    hard = limits[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(ENOUGH, hard)
    assert raise_descriptor_limit() == wanted
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (wanted, hard)
