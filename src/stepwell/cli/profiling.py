"""`stepwell train --profile`: where the time of one update goes, by torch.profiler."""

from pathlib import Path
from typing import Final

from torch._C._profiler import _ExperimentalConfig  # the only door to `profile_all_threads`
from torch.cuda import is_available
from torch.profiler import ProfilerActivity, profile

from stepwell.types import UpdateInfo

TRACE_FILE: Final = "profile.json.gz"
_SECOND: Final = 2
"""The first update pays for what is done only once: allocations, compilation, caches."""
_ROWS: Final = 20


class UpdateProfile:
    """Records the second update that this process makes, from when its groups are there until it is published."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._begun = 0
        """Updates."""
        self._profiler: profile | None = None
        self.table = ""
        """The costliest operators, once there is something to tell."""

    def collected(self) -> None:
        """An update begins."""
        self._begun += 1
        if self._begun != _SECOND:
            return
        gpu = [ProfilerActivity.CUDA] if is_available() else []
        self._profiler = profile(
            activities=[ProfilerActivity.CPU, *gpu],
            # the update runs in other threads than the one that is told of it
            experimental_config=_ExperimentalConfig(profile_all_threads=True),
        )
        self._profiler.start()

    def update(self, update: UpdateInfo) -> None:
        """An update is over."""
        if self._profiler is None:
            return
        self._profiler.stop()
        self._profiler.export_chrome_trace(str(self._file))
        key = "self_cuda_time_total" if is_available() else "self_cpu_time_total"
        averages = self._profiler.key_averages()
        self.table = f"update {update.policy_version}\n{averages.table(sort_by=key, row_limit=_ROWS)}"
        self._profiler = None

    def told(self) -> str:
        """What there is to say at the end."""
        if not self.table:
            return "no profile: it is of the second update that is made, and there was none"
        return f"{self.table}trace in {self._file}: open it in a browser's tracing page, or at ui.perfetto.dev"
