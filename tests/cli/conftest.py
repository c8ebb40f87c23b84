from collections.abc import Callable, Iterator

import pytest

from stepwell.cli.main import main
from tests.cli.processes import Finished


@pytest.fixture(autouse=True, scope="package")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Models are made in a cache of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPWELL_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Finished]:
    """Run `stepwell` in this process, through its entry point."""

    def run(*arguments: str) -> Finished:
        monkeypatch.setattr("sys.argv", ["stepwell", *arguments])
        monkeypatch.setenv("COLUMNS", "250")
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        captured = capsys.readouterr()
        return Finished(code, captured.out, captured.err)

    return run
