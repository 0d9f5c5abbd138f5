"""Draws collapsed stacks (`frame;frame;… count` a line) as one SVG: width is time, callees above.

From a profiler's raw output:

py-spy record --rate 250 --format raw --output stacks.txt -- PROGRAM
.venv/bin/python -m bench.flame_picture stacks.txt --under JournalSource._drain --output flame.svg
"""

from __future__ import annotations

import argparse
import html
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

WIDTH, ROW, LEAST = 1200.0, 17, 2.0
"""Pixels; narrower boxes are left out."""
COLORS = ("#c9dcef", "#b5cfe8", "#dbe7d3", "#c5dbb6", "#f2dfc0", "#ead1a6")
LETTER = 6.1


@dataclass
class Frame:
    """A function as called from its parents: samples in it and in what it calls."""

    count: int = 0
    callees: dict[str, Frame] = field(default_factory=dict)

    def add(self, stack: Iterable[str], count: int) -> None:
        """One stack, outermost first."""
        frame = self
        frame.count += count
        for name in stack:
            frame = frame.callees.setdefault(name, Frame())
            frame.count += count

    def depth(self) -> int:
        """Rows from here up."""
        return 1 + max((each.depth() for each in self.callees.values()), default=0)


def read(lines: Iterable[str], under: str) -> Frame:
    """The stacks that pass through a function, from there on."""
    root = Frame()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frames = [frame.split(" (")[0] for frame in stack.split(";")]
        if under in frames:
            root.add(frames[frames.index(under) + 1 :], int(count))
    return root


def picture(root: Frame, title: str) -> str:
    """The whole SVG."""
    height = (root.depth() + 1) * ROW + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:.0f}" height="{height}" '
        'font-family="sans-serif" font-size="11">'
    ]

    def draw(name: str, frame: Frame, left: float, level: int) -> None:
        width = WIDTH * frame.count / root.count
        if width < LEAST:
            return
        top, share = height - (level + 1) * ROW - 4, frame.count / root.count
        said = html.escape(name)
        parts.append(
            f"<g><title>{said}: {share:.1%}</title>"
            f'<rect x="{left:.1f}" y="{top}" width="{width - 0.6:.1f}" height="{ROW - 1}" '
            f'fill="{COLORS[sum(name.encode()) % len(COLORS)]}"/>'
        )
        room = int((width - 6) / LETTER)
        if room >= 3:
            label = f"{name} {share:.0%}" if len(name) + 4 <= room else name[:room]
            parts.append(
                f'<text x="{left + 3:.1f}" y="{top + 12}" fill="#222">{html.escape(label)}</text>'
            )
        parts.append("</g>")
        for callee, below in sorted(frame.callees.items()):
            draw(callee, below, left, level + 1)
            left += WIDTH * below.count / root.count

    draw(title, root, 0.0, 0)
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """One file in, one picture out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("stacks", type=Path)
    parser.add_argument("--under", required=True, help="function that the picture begins with")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    with given.stacks.open(encoding="utf-8") as lines:
        root = read(lines, given.under)
    if not root.count:
        parser.error(f"no stack passes through {given.under}")
    given.output.write_text(picture(root, given.under))


if __name__ == "__main__":
    main()
