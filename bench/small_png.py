"""A screenshot → a PNG of 256 colors: a third of the size, and no difference that is seen.

The browser decodes the picture and counts its colors: the most frequent stay as they are, of the
others (edges of letters) those that are alike become one.
"""

from __future__ import annotations

import base64
import struct
import zlib

from playwright.sync_api import Browser

_INDEXED = """async ([text, bits]) => {
  const bytes = Uint8Array.from(atob(text), each => each.charCodeAt(0));
  const bitmap = await createImageBitmap(new Blob([bytes], {type: "image/png"}));
  const {width, height} = bitmap;
  const context = new OffscreenCanvas(width, height).getContext("2d");
  context.drawImage(bitmap, 0, 0);
  const pixels = new Uint32Array(context.getImageData(0, 0, width, height).data.buffer);
  const counts = new Map();
  for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
  const part = (pixel, at) => (pixel >>> (8 * at)) & 255;
  const sorted = [...counts].sort((a, b) => b[1] - a[1]), exact = new Set();
  for (const [pixel] of sorted.slice(0, 64)) exact.add(pixel);
  const bucket = pixel => exact.has(pixel) ? pixel
    : [0, 1, 2].map(at => part(pixel, at) >> (8 - bits)).join();
  const palette = new Map();
  for (const [pixel] of sorted)
    if (!palette.has(bucket(pixel))) palette.set(bucket(pixel), [palette.size, pixel]);
  if (palette.size > 256) return null;
  const index = new Map([...counts.keys()].map(pixel => [pixel, palette.get(bucket(pixel))[0]]));
  let indices = "";
  for (const pixel of pixels) indices += String.fromCharCode(index.get(pixel));
  const colors = [...palette.values()].map(([, pixel]) => [0, 1, 2].map(at => part(pixel, at)));
  return {width, height, colors, indices: btoa(indices)};
}"""


def small_png(browser: Browser, png: str) -> bytes:
    """The same picture, from Base64 to bytes."""
    page = browser.new_page()
    found = next(
        indexed
        for bits in (6, 5, 4, 3, 2)
        if (indexed := page.evaluate(_INDEXED, [png, bits])) is not None
    )
    page.close()
    width, height = found["width"], found["height"]
    indices = base64.b64decode(found["indices"])
    rows = b"".join(b"\0" + indices[at : at + width] for at in range(0, width * height, width))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", bytes(part for color in found["colors"] for part in color)),
            _chunk(b"IDAT", zlib.compress(rows, 9)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
