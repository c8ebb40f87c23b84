from collections.abc import Iterator

import pytest

from tests.gateway.dialects.driver import Parrot, parrot


@pytest.fixture(scope="module")
def sdks() -> Iterator[Parrot]:
    """The real SDKs, in front of a server that says what a test tells it to."""
    with parrot() as found:
        yield found
