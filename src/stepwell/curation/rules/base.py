"""What a rule is: a reason for which data are left out, as a setting that can be saved and shown."""

from collections.abc import Sequence

from stepwell.config import Config
from stepwell.types import Step, Trajectory


class Rule(Config):
    """One rule. It sees the trajectories of a unit together: of a group, or a single one."""

    def refused(self, trajectories: Sequence[Trajectory]) -> dict[int, str]:
        """Of those that are left out, the place in `trajectories` and the reason, in one or two words."""
        reasons = {place: self.refuses(trajectory) for place, trajectory in enumerate(trajectories)}
        return {place: reason for place, reason in reasons.items() if reason}

    def refuses(self, trajectory: Trajectory) -> str:
        """Why a trajectory is left out, whatever it is compared with; empty if it is not."""
        del trajectory
        return ""


def main_steps(trajectory: Trajectory) -> list[Step]:
    """The agent's own work: without the calls beside it."""
    return [step for step in trajectory.steps if not step.side]
