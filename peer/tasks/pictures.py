"""Read an image file as pixels 0..255: upright, scaled by the type of its values, transparent pixels on white."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.ordinary_file import ordinary_file, unreadable
from coordinator_free_bootstrap.validation import counted

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"})
GROUND = "white"  # below transparent pixels
BYTE, WORD = 255, 65535  # the largest values of 8 and 16 bits
VISIBLE = 8  # levels between the darkest and the lightest pixel; with fewer a picture on white cannot be seen
ORIENTATION, UPRIGHT = 0x0112, 1  # a tag of EXIF
PHOTOMETRIC, WHITE_IS_ZERO = 262, 0  # a tag of TIFF; Pillow inverts such pictures of 8 bits, not those of 16


class Picture(NamedTuple):
    """Pixels [channels, height, width] in 0..255, uint8, or float32 where the file has finer values; and what was converted."""

    pixels: np.ndarray
    conversions: tuple[str, ...] = ()


def read_picture(path: Path, sample_shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return an image file as uint8 [channels, height, width], scaled bilinearly to ``sample_shape``.

    16 bits a pixel, and floats in [0, 1], become 0..255; transparent pixels stand on white; the picture is turned upright as the
    file says.

    Raises:
        TaskError: the file cannot be read or has several pictures, its values cannot be scaled, or the shape is not that of a
            grey or color image.
    """
    pixels = read_pixels(path, sample_shape).pixels
    return pixels if pixels.dtype == np.uint8 else np.rint(pixels).astype(np.uint8)


def read_pixels(path: Path, sample_shape: tuple[int, ...]) -> Picture:
    """Return an image file as `read_picture` does, with values between two bytes where the file has such.

    Raises:
        TaskError: as `read_picture`.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    if len(sample_shape) != 3 or sample_shape[0] not in {1, 3}:
        raise TaskError(
            f"{path}: expected pictures for samples [1 or 3, height, width], got a picture for samples of shape "
            f"{list(sample_shape)}. Give an array (.npy) or a table (.csv)."
        )
    channels, height, width = sample_shape
    try:
        with Image.open(ordinary_file(path)) as opened:
            _refuse_frames(path, opened)
            upright, conversions = ImageOps.exif_transpose(opened), []
            if upright.mode.startswith(("I", "F")):
                levels, said = _levels(path, opened, upright)
                scaled, conversions = Image.fromarray(levels), [said]
            else:
                scaled, conversions = _colors(path, upright)
                scaled = scaled.convert("L" if channels == 1 else "RGB")
            if opened.getexif().get(ORIENTATION, UPRIGHT) != UPRIGHT:
                conversions.append("turned upright, as its orientation says")
            pixels = np.asarray(scaled.resize((width, height), Image.Resampling.BILINEAR))
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        fix = "Give an image file, such as PNG or JPEG."
        raise TaskError(unreadable(f"picture: {path}", error, fix, "a picture")) from error
    pixels = np.broadcast_to(pixels, (channels, height, width)) if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return Picture(np.ascontiguousarray(pixels), tuple(conversions))


def summary(conversions: Iterable[tuple[str, ...]]) -> str | None:
    """Return what was converted in pictures, such as "40 of 80 pictures: transparent, on white"; None if nothing."""
    all_of_them = list(conversions)
    counts = Counter(said for each in all_of_them for said in each)
    return "; ".join(f"{n} of {counted(len(all_of_them), 'picture')}: {said}" for said, n in counts.items()) or None


def _refuse_frames(path: Path, opened: Image) -> None:
    """Refuse an animation or a stack; smaller copies of a picture, and the second pictures of a phone's JPEG, are not read."""
    if opened.format == "MPO":
        return
    size, frames = opened.size, 1
    for number in range(1, getattr(opened, "n_frames", 1)):
        opened.seek(number)
        frames += opened.size == size
    opened.seek(0)
    if frames > 1:
        raise TaskError(
            f"picture: {path}: expected one picture in a file, got {frames}. Write each of them, or the one that "
            "counts, to a file of its own."
        )


def _levels(path: Path, opened: Image, upright: Image) -> tuple[NDArray[np.float32], str]:
    """Return grey values of more than 8 bits as float32 [height, width] in 0..255, and what they were."""
    values = np.asarray(upright).astype(np.float64)
    least, most = values.min(), values.max()
    if upright.mode == "F":
        if not (least >= 0 and most <= 1):  # false for NaN too
            raise TaskError(
                f"picture: {path}: expected floats from 0 to 1, got floats from {least:g} to {most:g}. Divide them by "
                "the largest possible value, or write integers of 8 or 16 bits."
            )
        return (values * BYTE).astype(np.float32), "floats in [0, 1]"
    if upright.mode == "I" and not (BYTE < most <= WORD and least >= 0) and values.any():
        raise TaskError(
            f"picture: {path}: expected integers of 8 or 16 bits, got 32 bits from {least:g} to {most:g}, whose value of "
            "white is not known. Write 8 or 16 bits."
        )
    tags: Any = getattr(opened, "tag_v2", {})
    if upright.mode != "I" and tags.get(PHOTOMETRIC) == WHITE_IS_ZERO:
        values = WORD - values
    return (values * (BYTE / WORD)).astype(np.float32), "16 bits, scaled to 8"


def _colors(path: Path, upright: Image) -> tuple[Image, list[str]]:
    """Return a picture of 8 bits without transparency, and what was converted."""
    from PIL import Image

    if not upright.has_transparency_data:
        return upright, []
    layers = upright.convert("RGBA")
    alpha = layers.getchannel("A")
    if np.asarray(alpha).min() == BYTE:
        return upright if upright.mode in {"L", "RGB"} else layers.convert("RGB"), []
    flat = Image.alpha_composite(Image.new("RGBA", layers.size, GROUND), layers).convert("RGB")
    levels = np.asarray(flat)
    plain = int(np.ptp(levels, axis=(0, 1)).max()) < VISIBLE
    if plain and np.ptp(np.asarray(alpha)):
        raise TaskError(
            f"picture: {path}: expected a picture that can be seen on {GROUND}, got {GROUND} on a transparent background. "
            "Use a background of another color."
        )
    return flat, [f"transparent, on {GROUND}"]
