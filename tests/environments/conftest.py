"""`make test-envs` sets STEPWELL_ALL_ENVS: nothing may then be skipped since a package or a program is missing."""

import os
from collections.abc import Generator
from typing import TypeVar

import pytest

NO_PACKAGE_WOULD_HELP = ("this environment ", "the sample of HotpotQA rows ")
"""How the reasons begin for which a test may be skipped nevertheless."""

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _not_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _not_skipped((yield))  # a module that is skipped as a whole


def _not_skipped(report: Report) -> Report:
    if not report.skipped or hasattr(report, "wasxfail") or os.environ.get("STEPWELL_ALL_ENVS") != "1":
        return report
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not reason.removeprefix("Skipped: ").startswith(NO_PACKAGE_WOULD_HELP):
        report.outcome = "failed"
        report.longrepr = f"with STEPWELL_ALL_ENVS=1 this must not be skipped. {reason}"
    return report
