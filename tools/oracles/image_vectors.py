#!/usr/bin/env python3
"""Writes src/data/testdata/image_vectors.json: small image files and what Pillow makes of them.

Usage: image_vectors.py > src/data/testdata/image_vectors.json   (Pillow 12.3.0, numpy 2.4.6)

Not Pillow 13: it resizes columns first where the height shrinks most, so its bytes differ from what
models were trained on.
"""
import io
import json

import numpy as np
from PIL import Image

rng = np.random.default_rng(5)
W, H = 23, 17


def picture():
    """Smooth shades with some noise and sharp edges."""
    y, x = np.mgrid[0:H, 0:W].astype(float)
    rgb = np.stack([x * 255 / W, y * 255 / H, 127 + 127 * np.sin(x / 3 + y / 2)], -1) + rng.normal(0, 12, (H, W, 3))
    rgb[4:9, 5:12] = [255, 0, 20]
    return Image.fromarray(np.clip(rgb, 0, 255).astype(np.uint8))


def encode(image, **options):
    out = io.BytesIO()
    image.save(out, **options)
    return out.getvalue()


def hexed(image):
    return np.asarray(image.convert("RGB")).tobytes().hex()


base = picture()
alpha = base.copy()
alpha.putalpha(Image.fromarray(rng.integers(0, 256, (H, W), dtype=np.uint8)))
files = {
    "jpeg_420": encode(base, format="JPEG", quality=90, subsampling=2),
    "jpeg_444": encode(base, format="JPEG", quality=80, subsampling=0),
    "jpeg_progressive": encode(base, format="JPEG", quality=85, progressive=True),
    "jpeg_grey": encode(base.convert("L"), format="JPEG", quality=90),
    "jpeg_cmyk": encode(base.convert("CMYK"), format="JPEG", quality=95),
    "png_rgb": encode(base, format="PNG"),
    "png_rgba": encode(alpha, format="PNG"),
    "png_palette": encode(base.quantize(16), format="PNG"),
    "png_grey": encode(base.convert("L"), format="PNG"),
    "png_grey_alpha": encode(alpha.convert("LA"), format="PNG"),
    "png_bit": encode(base.convert("1"), format="PNG"),
    "bmp_24": encode(base, format="BMP"),
    "bmp_32": encode(alpha, format="BMP"),
}
result = {"files": {}, "resize": []}
for name, data in files.items():
    result["files"][name] = {"file": data.hex(), "height": H, "width": W, "rgb": hexed(Image.open(io.BytesIO(data)))}
for height, width in [(H, W), (17, 9), (5, 23), (40, 31), (7, 5), (1, 1), (33, 3), (3, 20)]:
    for name, filter in [("bilinear", Image.BILINEAR), ("bicubic", Image.BICUBIC)]:
        out = base.resize((width, height), filter)
        row = {"from": "png_rgb", "filter": name, "height": height, "width": width, "rgb": hexed(out)}
        result["resize"].append(row)
print(json.dumps(result, indent=0))
