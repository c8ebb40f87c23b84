"""Options of the charts that several pages have. Tooltips are drawn, not made of HTML, so that names stay text."""

from collections.abc import Sequence
from typing import Any, Final

GREY: Final = "#8a8f98"  # readable on white and on black, since a canvas does not follow the page's colours
AXIS: Final[dict[str, Any]] = {
    "axisLabel": {"color": GREY},
    "nameTextStyle": {"color": GREY},
    "splitLine": {"show": False},
}
GRID_LINE: Final[dict[str, Any]] = {"show": True, "lineStyle": {"color": GREY, "opacity": 0.25}}


def lines(series: Sequence[dict[str, Any]], x: str, y: str = "") -> dict[str, Any]:
    """A chart with one line per series, over whole numbers called `x`."""
    return {
        "animation": False,
        "grid": {"left": 52, "right": 24, "top": 32, "bottom": 40},
        "legend": {"show": len(series) > 1, "top": 0, "type": "scroll", "textStyle": {"color": GREY}},
        "tooltip": {"trigger": "axis", "renderMode": "richText"},
        "xAxis": {**AXIS, "type": "value", "name": x, "nameLocation": "middle", "nameGap": 26}
        | {"minInterval": 1, "min": "dataMin", "max": "dataMax"},
        "yAxis": {**AXIS, "type": "value", "name": y, "scale": True, "splitLine": GRID_LINE},
        "series": list(series),
    }


def line(name: str, points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """One series; its points are marked where they are few."""
    data = [list(point) for point in points]
    return {"type": "line", "name": name, "data": data, "showSymbol": len(data) < 40, "symbolSize": 5}
