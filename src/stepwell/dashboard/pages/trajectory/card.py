"""One step of a trajectory: what the policy saw and did, and all that is known of it."""

import asyncio
from dataclasses import dataclass
from typing import Final

from nicegui import ui

from stepwell.dashboard.pages.trajectory.summary import remark, rewarded, versions
from stepwell.dashboard.reading.credit import Advantage
from stepwell.dashboard.reading.trajectory import Parts, StepView, Turn, pretty
from stepwell.dashboard.tokens import FULL_COLOUR, Decode, colour, tokens_html
from stepwell.dashboard.visit import Visit
from stepwell.types import Annotation, Step

_LONGEST: Final = 200_000
"""Characters of a text that a browser is given."""
_WHY_FORKED: Final = {
    "client": "The client changed earlier messages; from here on the conversation is another.",
    "template": "Drift: the chat template writes the past differently now.",
    "tokenizer": "Drift: the ids of the past cannot be continued here.",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What may become known of a step that is drawn already."""

    gap: float | None
    """Seconds from the answer of the step before to this request; None for the first."""
    rewards: Parts
    credit: Advantage | None
    remarks: tuple[Annotation, ...]


class StepCard:
    """What came before the step as text, and its card."""

    def __init__(self, view: StepView, tokens: str | None, visit: Visit) -> None:
        """Draw it; `tokens` is the markup of its tokens, None if they are to be made when they are opened."""
        step = self._step = view.step
        if view.rewritten or step.fork in ("template", "tokenizer"):
            ui.label(_WHY_FORKED[step.fork if step.fork in _WHY_FORKED else "client"]).classes("sw-warning")
        if step.side:
            ui.label(f"A call beside the agent's work, for its {step.side}: never trained on.").classes("sw-warning")
        for turn in view.seen:
            _turn(turn)
        with ui.card().classes("w-full gap-2 sw-step").props(f"tabindex=-1 data-step={step.index}"):
            with ui.row().classes("items-baseline gap-x-3 gap-y-0"):
                ui.label(f"Step {step.index}").classes("font-medium").props('role="heading" aria-level="3"')
                ui.label(_facts(step)).classes("text-sm sw-quiet")
            with ui.row().classes("items-center gap-x-3 gap-y-1 text-sm"):
                self._reward = ui.label()
                self._bar = ui.element("span").classes("sw-bar")
                self._credit = ui.label()
                self._time = ui.label().classes("sw-quiet")
            if view.answer is not None:
                ui.label(view.answer.text).classes("sw-text")
            _tokens(step, tokens, visit)
            _raw(step, visit)
            self._remarks = ui.label().classes("sw-text text-sm")

    def update(self, facts: Facts, visit: Visit) -> None:
        """Show what is known now."""
        self._reward.text = f"reward {rewarded(facts.rewards)}" if facts.rewards else "no reward"
        self._time.text = _timing(self._step, facts.gap, visit)
        credit = facts.credit
        self._credit.text = "" if credit is None else f"credit {credited(credit)}"
        for shown in (self._bar, self._credit):
            shown.set_visibility(credit is not None)
        if credit is not None:
            side = "left" if credit.mean < 0 else "right"
            self._bar.style(f"--sw-length: {min(abs(credit.mean), 3) / 3:.0%}; --sw-side: {side}")
            self._bar.classes(replace=f"sw-bar {'sw-against' if credit.mean < 0 else 'sw-for'}")
        self._remarks.text = "\n".join(remark(note, visit) for note in facts.remarks)
        self._remarks.set_visibility(bool(facts.remarks))


def credited(credit: Advantage) -> str:
    """An advantage as words."""
    if not credit.trained:
        return "none: left out of the loss"
    if credit.lowest == credit.highest:
        return f"{credit.mean:+.3f}"
    return f"{credit.mean:+.3f} on average, from {credit.lowest:+.3f} to {credit.highest:+.3f}"


def _facts(step: Step) -> str:
    facts = [
        versions(step.policy_version_min, step.policy_version_max),
        f"{len(step.prompt_ids):,} prompt tokens",
        f"{len(step.response_ids):,} sampled",
        f"ended by {step.finish_reason}",
    ]
    if step.dialect:
        facts.append(f"asked in {step.dialect}")
    if step.token_source != "engine":
        facts.append("tokens guessed from text")
    return " · ".join(facts)


def _timing(step: Step, gap: float | None, visit: Visit) -> str:
    said = f"{visit.time(step.created_at, '%H:%M:%S')} · took {step.latency:.2f} s"
    return said if gap is None else f"{said} · begun {_apart(gap)} the step before"


def _apart(gap: float) -> str:
    return f"{gap:.2f} s after" if gap >= 0 else f"{-gap:.2f} s before the end of"


def _turn(turn: Turn) -> None:
    with ui.column().classes("w-full gap-0 px-4"):
        ui.label(turn.role).classes("text-xs sw-quiet")
        ui.label(_cut(turn.text)).classes("sw-text")


def _tokens(step: Step, markup: str | None, visit: Visit) -> None:
    with ui.expansion("Sampled tokens", value=markup is not None).classes("w-full").props("dense") as panel:
        shown = ui.html(markup or "").classes("sw-tokens")
    if markup is None:

        async def fill() -> None:
            if panel.value and not shown.content:
                shown.content = await asyncio.to_thread(tokens_html, step, visit.decoders.get(step.model))

        panel.on_value_change(fill)


def _raw(step: Step, visit: Visit) -> None:
    """The exact texts, made only when they are opened: they are long, and seldom looked at."""
    with ui.expansion("Raw prompt, request and response").classes("w-full").props("dense") as panel:
        content = ui.column().classes("w-full gap-2")

    async def fill() -> None:
        if not panel.value or content.default_slot.children:
            return
        parts = await asyncio.to_thread(_exact, step, visit.decoders.get(step.model))
        with content:
            for name, text in parts.items():
                ui.label(name).classes("text-xs sw-quiet")
                shown = ui.label(_cut(text)).classes("sw-text sw-long font-mono text-sm")
                shown.props(f'tabindex=0 role=region aria-label="{name}"')

    panel.on_value_change(fill)


def _exact(step: Step, decode: Decode | None) -> dict[str, str]:
    """By what they are called; without those that were not stored."""
    prompt = decode(step.prompt_ids) if decode else " ".join(map(str, step.prompt_ids.tolist()))
    texts = {
        "Prompt, as the engine was given it": prompt,
        "Request, as the client sent it": pretty(step.request),
        "Response, as the client received it": pretty(step.response),
    }
    return {name: text for name, text in texts.items() if text}


def _cut(text: str) -> str:
    more = len(text) - _LONGEST
    return text if more <= 0 else f"{text[:_LONGEST]}\n… and {more:,} more characters"


def legend() -> None:
    """What the colours of tokens mean."""
    steps = "".join(
        f'<span style="background: {colour(-surprise * FULL_COLOUR / 5)}" class="sw-swatch"></span>'
        for surprise in range(6)
    )
    said = f"surprising (log-probability {-FULL_COLOUR:g} or less); point at one for its figures"
    ui.html(f"Tokens: certain {steps} {said}").classes("text-xs sw-quiet")
