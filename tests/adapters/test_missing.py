"""A missing package is an error that names the extra which brings it."""

import subprocess
import sys

import pytest

PROBE = """
import sys
sys.modules[sys.argv[1]] = None  # None makes an import fail, as if it were not installed
try:
    __import__(f"stepwell.adapters.{sys.argv[2]}")
except ImportError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(("package", "adapter"), [("verl", "verl"), ("datasets", "trl")])
def test_an_adapter_without_its_trainer_names_the_extra(package: str, adapter: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROBE, package, adapter], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("MissingDependency"), done.stderr
    assert f"pip install 'stepwell[{adapter}]'" in done.stdout
