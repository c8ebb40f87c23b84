"""The head of a trajectory's page: what it is, how it ended, what it earned, what people said."""

from nicegui import ui

from stepwell.dashboard.addresses import link
from stepwell.dashboard.pages.trajectory.keys import help_button
from stepwell.dashboard.reading.trajectory import Head, Parts
from stepwell.dashboard.verdicts import Judge
from stepwell.dashboard.visit import Visit
from stepwell.dashboard.widgets import status_badge
from stepwell.types import Annotation


def summary(head: Head, visit: Visit, judge: Judge) -> None:
    """A card, with the controls by which it is judged."""
    found, info = head.summary, head.summary.info
    with ui.card().classes("w-full gap-2"):
        with ui.row().classes("items-center gap-3 w-full"):
            ui.label(info.id).classes("text-lg font-medium sw-text").props('role="heading" aria-level="2"')
            status_badge(found.status)
            if found.status == "open":
                ui.badge("live: new steps appear below", color="primary").props("outline")
            ui.space()
            help_button()
        if head.why:
            ui.label(head.why).classes("sw-text")
        with ui.row().classes("gap-x-8 gap-y-2"):
            for name, value in _facts(head, visit).items():
                with ui.column().classes("gap-0"):
                    ui.label(name).classes("text-xs sw-quiet")
                    if name == "group" and info.group_id:
                        ui.link(value, link("/representation", group_ids=info.group_id)).classes("sw-text")
                    else:
                        ui.label(value or "not given").classes("sw-text")
        judge.controls()
        judge.trail(shown=False)
        judge.show(head)


def rewarded(parts: Parts) -> str:
    """A reward and what it consists of."""
    if not parts:
        return "none yet"
    total = sum(value for _, value in parts)
    return f"{total:.3g} ({', '.join(f'{name} {value:.3g}' for name, value in parts)})"


def remark(note: Annotation, visit: Visit) -> str:
    """One line for what was said."""
    value = "" if note.value is None else f" {note.value:g}"
    about = "" if note.target == "trajectory" else f" of {note.target_id}"
    return f"{visit.time(note.created_at)} · {note.kind}{about}: {note.name}{value}" + (note.text and f" · {note.text}")


def versions(low: int | None, high: int | None) -> str:
    """The policy versions that sampled something."""
    if low is None:
        return "no step yet"
    return f"policy version {low}" if low == high else f"policy versions {low} to {high}"


def _facts(head: Head, visit: Visit) -> dict[str, str]:
    found, info = head.summary, head.summary.info
    return {
        "reward": rewarded(head.reward_parts),
        "task": info.task_id,
        "group": info.group_id or "none",
        "channel": found.channel,
        "agent": info.agent,
        "source": info.source,
        "opened": visit.time(info.created_at),
        "steps": f"{found.steps:,}",
        "tokens": f"{found.response_tokens:,} sampled after {found.prompt_tokens:,} of prompt",
        "sampled by": versions(found.policy_version_min, found.policy_version_max),
    }
