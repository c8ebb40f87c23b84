"""The table: one row per client, the same on the terminal and in the documentation."""

from collections.abc import Sequence

from tests.clients.forks import Forked
from tests.clients.stage import Performance
from tests.clients.verdict import calls_of, complaints, drift_of, forks_of, main_trajectories, steps_of

HEADINGS = (
    "client",
    "version",
    "dialect",
    "model",
    "streamed",
    "tools",
    "calls",
    "steps",
    "side",
    "trajectories",
    "forks",
    "drift",
    "forked",
    "seconds",
    "verdict",
)


def row(performance: Performance, forked: Forked | None) -> tuple[str, ...]:
    """The cells of one client's row."""
    client, calls, steps = performance.client, calls_of(performance), steps_of(performance)
    side = sum(bool(step.side) for step in steps)
    called = sum('"tool_calls"' in step.response for step in steps)
    forks = ", ".join(f"{count} {reason}" for reason, count in forks_of(performance).items())
    return (
        client.name,
        client.package.version,
        client.dialect,
        performance.model,
        f"{sum(call.streamed for call in calls)} of {len(calls)}",
        str(called),
        str(len(calls)),
        str(len(steps)),
        str(side),
        str(main_trajectories(performance)),
        forks or "none",
        str(drift_of(performance)),
        "-" if forked is None else str(forked),
        f"{performance.seconds:.0f}",
        "; ".join([*complaints(performance), *(forked.refused if forked else ())]) or "green",
    )


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows in columns, as Markdown."""
    lines = [HEADINGS, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS) - 1)] + [0]
    shown = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([shown[0], rule, *shown[1:]])
