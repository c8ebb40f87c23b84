from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from openai import OpenAI

from stepwell.gateway.app import create_app
from stepwell.gateway.config import GatewayConfig
from stepwell.pool.store import SQLitePool
from stepwell.rendering.renderer import Renderer
from tests.fakes.engines import ScriptedEngine
from tests.fakes.models import tiny_renderer
from tests.fakes.servers import serving


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SQLitePool]:
    pool = SQLitePool.open(tmp_path / "pool.sqlite")
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def renderer() -> Renderer:
    return tiny_renderer("line")


@pytest.fixture(scope="session")
def hermes() -> Renderer:
    return tiny_renderer("hermes")


@pytest.fixture
def serve(pool: SQLitePool) -> Iterator[Callable[[ScriptedEngine], str]]:
    """Start a gateway in front of an engine; returns its base URL. It stops at the test's end."""
    with ExitStack() as stack:

        def start(engine: ScriptedEngine, config: GatewayConfig | None = None) -> str:
            return stack.enter_context(serving(create_app(engine, engine.renderer, pool, config)))

        yield start


@pytest.fixture
def client() -> Iterator[Callable[..., OpenAI]]:
    """An OpenAI client for a base URL, with a trajectory in the path or the key if the test asks for it."""
    with ExitStack() as stack:

        def make(url: str, *, path: str = "", key: str = "sk-unused") -> OpenAI:
            base = f"{url}/t/{path}/v1" if path else f"{url}/v1"
            return stack.enter_context(OpenAI(base_url=base, api_key=key, max_retries=0))

        yield make
