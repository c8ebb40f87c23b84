"""How faithfully conversations went on: what the counts of forks say about one model and agent."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.pool.base import ForkCount


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """The steps of one model and agent."""

    model: str
    agent: str
    steps: int
    """Without side calls."""
    roots: int
    extended: int
    client: int
    template: int
    tokenizer: int
    side: int

    @property
    def drift(self) -> float:
        """Share of the steps that go on from another, and whose ids do not, in 0..1."""
        drifted = self.template + self.tokenizer
        return drifted / (drifted + self.extended) if drifted else 0.0


def fidelity(counts: Sequence[ForkCount]) -> list[Fidelity]:
    """One line per model and agent."""
    by_pair: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for count in counts:
        by_pair[count.model, count.agent]["side" if count.side else count.fork] += count.steps
    return [
        Fidelity(
            model=model,
            agent=agent,
            steps=sum(count for kind, count in kinds.items() if kind != "side"),
            roots=kinds["root"],
            extended=kinds[""],
            client=kinds["client"],
            template=kinds["template"],
            tokenizer=kinds["tokenizer"],
            side=kinds["side"],
        )
        for (model, agent), kinds in by_pair.items()
    ]
