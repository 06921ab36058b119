"""Writes the photos that image-bench measures: crops of real photos, resized, blended, with sensor noise.

    pip install numpy pillow scikit-learn scikit-image
    python3 photos.py FOLDER

FOLDER/500x375 and FOLDER/500x375-progressive hold 48 photos each of about 110 KB, as ImageNet's; FOLDER/2000x1500 holds
12 of about 900 KB. The photos ship inside scikit-learn and scikit-image. Same package versions, same bytes.
"""

import io
import pathlib
import sys

import numpy as np
import skimage
import sklearn
from PIL import Image

SETS = [
    # folder, width, height, photos, mean bytes, options of the encoder
    ("500x375", 500, 375, 48, 110_000, {}),
    ("500x375-progressive", 500, 375, 48, 110_000, {"progressive": True}),
    ("2000x1500", 2000, 1500, 12, 900_000, {}),
]
NAMES = {
    sklearn: ["datasets/images/china.jpg", "datasets/images/flower.jpg"],
    skimage: [f"data/{name}" for name in (
        "astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg", "retina.jpg",
        "hubble_deep_field.jpg", "ihc.png", "grass.png", "gravel.png", "brick.png")],
}


def photos():
    for package, names in NAMES.items():
        for name in names:
            path = pathlib.Path(package.__file__).parent / name
            if path.exists():
                yield Image.open(path).convert("RGB")


def crop(image, rng, width, height):
    part = rng.uniform(0.5, 1.0)
    w, h = image.width * part, image.width * part * height / width
    if h > image.height:
        w, h = w * image.height / h, image.height
    x, y = rng.uniform(0, image.width - w), rng.uniform(0, image.height - h)
    return image.resize((width, height), Image.BICUBIC, box=(x, y, x + w, y + h))


def render(seed, sources, width, height):
    rng = np.random.default_rng(seed)
    one, other = (crop(sources[rng.integers(len(sources))], rng, width, height) for _ in range(2))
    image = np.asarray(Image.blend(one, other, rng.uniform(0, 0.4)), np.float32)
    noisy = image + rng.normal(0, rng.uniform(1, 6), (height, width, 1))
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def encode(image, quality, options):
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality, subsampling="4:2:0", **options)
    return out.getvalue()


def main(folder):
    sources = list(photos())
    print(f"{len(sources)} source photos")
    for name, width, height, count, target, options in SETS:
        images = [render([width, i], sources, width, height) for i in range(count)]
        low, high = 30, 99
        while low < high:
            quality = (low + high + 1) // 2
            mean = np.mean([len(encode(image, quality, options)) for image in images])
            low, high = (quality, high) if mean <= target else (low, quality - 1)
        to = pathlib.Path(folder) / name
        to.mkdir(parents=True, exist_ok=True)
        files = [encode(image, low, options) for image in images]
        for i, data in enumerate(files):
            (to / f"{i:03}.jpg").write_bytes(data)
        print(f"{name}: {count} photos, quality {low}, {np.mean([len(f) for f in files]):,.0f} bytes on average")


if __name__ == "__main__":
    main(*sys.argv[1:])
