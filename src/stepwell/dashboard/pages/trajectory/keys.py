"""Going through the steps of a trajectory by keys. All of it happens in the browser, but for reading more steps."""

import json
from typing import Final

from nicegui import ui

EARLIER: Final = "sw-earlier"
LATER: Final = "sw-later"
_HELP: Final = "sw-keys"
"""Classes of the buttons that keys press."""
_OPEN: Final = "sw-keys-open"
"""Class of the help while it is shown."""
KEYS: Final = (
    ("j or →", "next step"),
    ("k or ←", "step before"),
    ("letters on buttons", "judge the trajectory"),
    ("?", "this help"),
    ("Esc", "close it"),
)

_SCRIPT: Final = f"""
<script>
(() => {{
  const ways = {{ j: 1, ArrowRight: 1, k: -1, ArrowLeft: -1 }};
  const elsewhere = "input, textarea, select, [contenteditable=true], [role=listbox], [role=tablist], .q-dialog";
  const remember = (name, value) => {{
    const url = new URL(location);
    value === "" ? url.searchParams.delete(name) : url.searchParams.set(name, value);
    history.replaceState({{}}, "", url);
  }};
  const focus = (card) => {{
    card.focus({{ preventScroll: true }});
    card.scrollIntoView({{ block: "start" }});
    remember("step", card.dataset.step);
  }};
  const here = (cards) => {{
    const focused = cards.indexOf(document.activeElement?.closest("[data-step]"));
    return focused >= 0 ? focused : cards.findLastIndex((card) => card.getBoundingClientRect().top < 1);
  }};
  window.swRemember = remember;
  window.swStep = (index, patience = 120) => {{  // it may not be drawn yet
    const card = document.querySelector(`[data-step="${{index}}"]`);
    if (card) focus(card);
    else if (patience) requestAnimationFrame(() => window.swStep(index, patience - 1));
  }};
  document.addEventListener("keydown", (event) => {{  // who reads about keys presses none
    if (event.key.length === 1 && document.querySelector(".{_OPEN}")) event.stopImmediatePropagation();
  }}, true);
  document.addEventListener("keydown", (event) => {{
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.(elsewhere)) return;
    if (event.key === "?") document.querySelector(".{_HELP}")?.click();
    const way = ways[event.key];
    if (!way) return;
    event.preventDefault();
    const cards = [...document.querySelectorAll("[data-step]")];
    const card = cards[here(cards) + way];
    if (card) focus(card);
    else document.querySelector(way > 0 ? ".{LATER}" : ".{EARLIER}")?.click();
  }});
}})();
</script>"""


def add_keys() -> None:
    """Make the keys work on the page that is being built."""
    ui.add_body_html(_SCRIPT)


def help_button() -> None:
    """Says which keys there are."""
    with ui.dialog() as dialog, ui.card().classes(f"gap-2 {_OPEN}"):
        ui.label("Keys").classes("font-medium")
        with ui.element("dl").classes("grid gap-x-6 gap-y-1").style("grid-template-columns: auto 1fr"):
            for key, meaning in KEYS:
                with ui.element("dt"):
                    ui.label(key).classes("font-mono")
                with ui.element("dd"):
                    ui.label(meaning)
        ui.button("Close", on_click=dialog.close).props("flat no-caps")
    button = ui.button("?", on_click=dialog.open).props('flat round dense aria-label="Keys of this page"')
    button.classes(_HELP)


def go_to(index: int) -> None:
    """Scroll to the step with this index, once it is drawn."""
    ui.run_javascript(f"swStep({index})")


def remember(name: str, value: str) -> None:
    """As `Visit.remember`, of one part of the state: the browser knows at which step somebody is."""
    ui.run_javascript(f"swRemember({json.dumps(name)}, {json.dumps(value)})")
