"""Plots without a library: lines over logarithmic axes, as SVG. Owns: scales, ticks. Must not know: what is plotted."""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 860, 520
LEFT, RIGHT, TOP, BOTTOM = 80, 250, 40, 60
COLOURS = ("#222222", "#1f77b4", "#6baed6", "#2ca02c", "#98df8a", "#d62728", "#ff9896", "#9467bd")

Series = dict[str, list[tuple[float, float]]]


def lines(title: str, across: str, up: str, series: Series) -> str:
    """An SVG picture; both axes are logarithmic, so all values must be positive."""
    points = [point for line in series.values() for point in line]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x_low, x_high, y_low, y_high = min(xs), max(xs), min(ys) / 1.3, max(ys) * 1.3

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + _along(x, x_low, x_high) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - _along(y, y_low, y_high) * (HEIGHT - TOP - BOTTOM),
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="{TOP - 16}" font-size="15">{escape(title)}</text>',
    ]
    for x in sorted(set(xs)):
        at, bottom = place(x, y_low)
        parts += [
            f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{bottom:.1f}" stroke="#dddddd"/>',
            f'<text x="{at:.1f}" y="{bottom + 18:.1f}" text-anchor="middle">{x:g}</text>',
        ]
    for power in range(math.floor(math.log10(y_low)), math.ceil(math.log10(y_high)) + 1):
        if y_low <= 10.0**power <= y_high:
            left, at = place(x_low, 10.0**power)
            parts += [
                f'<line x1="{left:.1f}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}" stroke="#dddddd"/>',
                f'<text x="{left - 8:.1f}" y="{at + 4:.1f}" text-anchor="end">{10.0**power:g}</text>',
            ]
    parts += [
        f'<text x="{(WIDTH - RIGHT + LEFT) / 2}" y="{HEIGHT - 14}" text-anchor="middle">{escape(across)}</text>',
        f'<text x="16" y="{TOP - 16}">{escape(up)}</text>',
    ]
    for number, (name, line) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in line))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in (place(*p) for p in line)]
        at = TOP + 20 * number
        parts += [
            f'<rect x="{WIDTH - RIGHT + 20}" y="{at}" width="14" height="4" fill="{colour}"/>',
            f'<text x="{WIDTH - RIGHT + 40}" y="{at + 6}">{escape(name)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def crossing(above: list[tuple[float, float]], below: list[tuple[float, float]]) -> float | None:
    """From which x on `below` is under `above`, between measured points on a logarithmic scale; None: nowhere measured.

    The first measured x, where it is below there already.
    """
    other = dict(above)
    gaps = [(x, math.log(other[x] / y)) for x, y in sorted(below) if x in other]
    for at, (x, gap) in enumerate(gaps):
        if gap > 0:
            if at == 0:
                return x
            before, missing = gaps[at - 1]
            return math.exp(math.log(before) + (math.log(x) - math.log(before)) * -missing / (gap - missing))
    return None


def _along(value: float, low: float, high: float) -> float:
    return 0.5 if low == high else math.log(value / low) / math.log(high / low)
