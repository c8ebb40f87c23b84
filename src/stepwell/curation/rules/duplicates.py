"""Leave out what was said before."""

from collections.abc import Sequence
from typing import Literal

from stepwell.curation.rules.base import Rule, main_steps
from stepwell.types import Trajectory


class Duplicates(Rule):
    """Within a group, a trajectory that did exactly what an earlier one did. The first one stays."""

    use: Literal["duplicates"] = "duplicates"
    """Names the rule."""

    def refused(self, trajectories: Sequence[Trajectory]) -> dict[int, str]:
        """See `Rule`."""
        seen: set[tuple[bytes, ...]] = set()
        reasons = {}
        for place, trajectory in enumerate(trajectories):
            said = tuple(step.response_ids.tobytes() for step in main_steps(trajectory))
            if said and said in seen:
                reasons[place] = "duplicate"
            seen.add(said)
        return reasons
