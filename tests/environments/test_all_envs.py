"""Where all environments are to be tested, a missing package fails the run instead of skipping tests."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULES = {
    "test_module.py": "pytest.importorskip('no_such_package')\ndef test_it(): pass\n",
    "test_call.py": "def test_it(): pytest.skip('needs Java')\n",
    "test_mark.py": "@pytest.mark.skipif(True, reason='no bubblewrap')\ndef test_it(): pass\n",
    "test_law.py": "def test_it(): pytest.skip('this environment can be forked')\n",
    "test_known.py": "@pytest.mark.xfail\ndef test_it(): assert False\n",
}


def _summary(folder: Path, all_envs: str) -> str:
    for name, source in MODULES.items():
        (folder / name).write_text(f"import pytest\n{source}")
    command = [sys.executable, "-m", "pytest", "-p", "tests.environments.conftest", "--continue-on-collection-errors"]
    environment = {**os.environ, "STEPWELL_ALL_ENVS": all_envs, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run([*command, folder], env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    return ran.stdout.splitlines()[-1]


def test_what_is_missing_skips_tests(tmp_path: Path) -> None:
    assert "4 skipped, 1 xfailed in" in _summary(tmp_path, "")


def test_what_is_missing_is_an_error_where_all_is_to_be_tested(tmp_path: Path) -> None:
    assert "1 failed, 1 skipped, 1 xfailed, 2 errors in" in _summary(tmp_path, "1")
