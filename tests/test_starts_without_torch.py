"""The middleware, and the commands that only use it, start where torch and transformers are not installed."""

import subprocess
import sys

NEEDS_NO_TORCH = (
    "types",
    "errors",
    "config",
    "algorithms",
    "rendering",
    "engines.base",
    "pool",
    "gateway",
    "rollout",
    "scoring",
    "dashboard",
    "environments",
    "cli.main",
    "cli.run",
    "cli.pool",
    "cli.dashboard",
    "cli.doctor",
    "cli.drift",
    "cli.keys",
    "cli.serve",
)

PROBE = """
import importlib, pkgutil, sys
sys.modules.update({"torch": None, "transformers": None})  # None makes an import fail, as if it were not installed
for name in sys.argv[1:]:
    part = importlib.import_module(f"stepwell.{name}")
    for module in pkgutil.walk_packages(getattr(part, "__path__", []), f"stepwell.{name}."):
        importlib.import_module(module.name)
loaded = {name.partition(".")[0] for name, module in sys.modules.items() if module is not None}
print(sorted(loaded & {"torch", "transformers", "stepwell"}))
"""


def test_the_middleware_imports_neither_torch_nor_transformers() -> None:
    command = [sys.executable, "-c", PROBE, *NEEDS_NO_TORCH]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['stepwell']"
