"""How steps look, on a trajectory's page and where two are compared."""

from typing import Final

from nicegui import ui

_STYLE: Final = """
.sw-step { scroll-margin-top: 8px; }
.sw-step:focus { outline: 2px solid #5898d4; }
.sw-warning { color: #9a3412; }
.body--dark .sw-warning { color: #fdba74; }
.sw-long { max-height: 28rem; overflow: auto; width: 100%; }
.sw-swatch { display: inline-block; width: 1.25rem; height: 0.75rem; vertical-align: middle; border-radius: 3px;
  border: 1px solid rgba(128, 128, 128, 0.4); }
.sw-bar { display: inline-block; width: 72px; height: 10px; border-radius: 2px; position: relative;
  background: rgba(128, 128, 128, 0.2); }
.sw-bar::after { content: ""; position: absolute; top: 0; height: 100%; width: calc(var(--sw-length) / 2);
  border-radius: 2px; }
.sw-for::after { left: 50%; background: #2f9e63; }
.sw-against::after { right: 50%; background: #d9534f; }
.sw-differs { background: rgba(249, 115, 22, 0.3); border-radius: 3px; }
"""


def add_style() -> None:
    """Give the page that is being built this look."""
    ui.add_css(_STYLE)
