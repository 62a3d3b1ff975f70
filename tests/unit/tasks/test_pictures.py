"""Pictures of every kind become pixels 0..255 that mean the same, or are refused with the file and a remedy."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageDraw

from coordinator_free_bootstrap.errors import TaskError
from peer.tasks import read_picture
from peer.tasks.pictures import read_pixels
from peer.zoo.tasks.datasets import load_pool

RAMP = np.linspace(4000, 60000, 64).reshape(8, 8)


def read(path, channels=1, side=8):
    return read_picture(path, (channels, side, side))


def saved(path, values, **options):
    (values if isinstance(values, Image.Image) else Image.fromarray(values)).save(path, **options)
    return path


def stroke(color, ground, mode="RGBA"):
    """Return a vertical stroke on a ground."""
    picture = Image.new(mode, (8, 8), ground)
    ImageDraw.Draw(picture).rectangle((3, 0, 4, 7), fill=color)
    return picture


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("deep.png", RAMP.astype(np.uint16)),
        ("deep.tif", RAMP.astype(np.uint16)),
        ("big_endian.tif", RAMP.astype(">u2")),
        ("signed.tif", RAMP.astype(np.int32)),
        ("float.tif", (RAMP / 65535).astype(np.float32)),
        ("byte.png", (RAMP / 257).round().astype(np.uint8)),
    ],
)
def test_values_are_scaled_by_their_type(tmp_path, name, values):
    """Pictures of 16 bits were white, those of floats black."""
    path = saved(tmp_path / name, values)
    np.testing.assert_allclose(read(path)[0], RAMP / 257, atol=0.51)
    np.testing.assert_array_equal(*read(path, channels=3)[:2])
    fine = read_pixels(path, (1, 8, 8)).pixels
    assert fine.dtype == (np.uint8 if "byte" in name else np.float32)
    np.testing.assert_allclose(fine[0], RAMP / 257, atol=0.51 if "byte" in name else 0.01)


def test_white_is_zero_pictures_of_16_bits_are_inverted_as_those_of_8(tmp_path):
    negative = (65535 - RAMP).astype(np.uint16)
    path = saved(tmp_path / "x_ray.tif", negative, tiffinfo={262: 0})
    np.testing.assert_allclose(read(path)[0], RAMP / 257, atol=0.51)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "PA"])
def test_transparent_pixels_stand_on_white(tmp_path, mode):
    """A black drawing on a transparent background was black all over."""
    drawing = stroke((0, 0, 0, 255), (0, 0, 0, 0)).convert(mode if mode != "PA" else "P")
    options = {}
    if mode in {"P", "PA"}:
        drawing = Image.new("P", (8, 8), 1)
        drawing.putpalette([0, 0, 0, 9, 9, 9])
        drawing.paste(0, (3, 0, 5, 8))
        options = {"transparency": 1}
    path = saved(tmp_path / ("a.gif" if mode == "PA" else "a.png"), drawing, **options)
    for channels in (1, 3):
        pixels = read(path, channels)
        assert set(pixels[:, :, 3:5].ravel().tolist()) == {0}
        assert set(pixels[:, :, :3].ravel().tolist()) == {255}
    assert read_pixels(path, (1, 8, 8)).conversions == ("transparent, on white",)


def test_half_transparent_pixels_are_mixed_with_the_ground(tmp_path):
    path = saved(tmp_path / "a.png", stroke((0, 0, 0, 128), (0, 0, 0, 0)))
    assert abs(int(read(path)[0, 0, 3]) - 127) <= 1


def test_white_on_a_transparent_ground_is_refused(tmp_path):
    path = saved(tmp_path / "white.png", stroke((255, 255, 255, 255), (0, 0, 0, 0)))
    with pytest.raises(
        TaskError, match=r"white\.png: expected .*, got white on a transparent background.*background of another color"
    ):
        read(path)


@pytest.mark.parametrize(
    ("mode", "color", "ground"),
    [("RGBA", (9, 90, 200, 255), (250, 240, 3, 255)), ("RGB", (9, 90, 200), (250, 240, 3)), ("L", 7, 201), ("1", 0, 1)],
)
def test_opaque_pictures_have_their_own_values(tmp_path, mode, color, ground):
    picture = stroke(color, ground, mode)
    path = saved(tmp_path / "a.png", picture)
    np.testing.assert_array_equal(read(path, 3), np.asarray(picture.convert("RGB")).transpose(2, 0, 1))
    assert read_pixels(path, (3, 8, 8)).conversions == ()


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr"])
def test_other_color_spaces_become_rgb(tmp_path, mode):
    picture = stroke((9, 90, 200), (250, 240, 3), "RGB").convert(mode)
    path = saved(tmp_path / "a.tif", picture)
    np.testing.assert_array_equal(read(path, 3), np.asarray(picture.convert("RGB")).transpose(2, 0, 1))


def test_a_picture_of_a_phone_is_turned_upright(tmp_path):
    upright = Image.fromarray(RAMP.astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by 90 degrees
    path = saved(tmp_path / "phone.png", upright.transpose(Image.Transpose.ROTATE_90), exif=exif)
    np.testing.assert_array_equal(read(path)[0], np.asarray(upright))
    assert read_pixels(path, (1, 8, 8)).conversions == ("turned upright, as its orientation says",)


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("counts.tif", (RAMP * 3).astype(np.float32), "expected floats from 0 to 1, got floats from 12000 to 180000"),
        ("negative.tif", np.full((8, 8), -0.5, np.float32), "expected floats from 0 to 1, got floats from -0.5"),
        ("nan.tif", np.full((8, 8), np.nan, np.float32), "expected floats from 0 to 1, got floats from nan"),
        (
            "hounsfield.tif",
            np.full((8, 8), -1000, np.int32),
            "expected integers of 8 or 16 bits, got 32 bits from -1000",
        ),
        (
            "unknown.tif",
            np.full((8, 8), 200, np.int32),
            "expected .* from 200 to 200, whose value of white is not known",
        ),
    ],
)
def test_values_of_unknown_scale_are_refused(tmp_path, name, values, words):
    with pytest.raises(TaskError, match=f"{name}: {words}"):
        read(saved(tmp_path / name, values))


@pytest.mark.parametrize("name", ["film.gif", "stack.tif", "moving.png", "moving.webp"])
def test_several_pictures_in_one_file_are_refused(tmp_path, name):
    frames = [Image.fromarray(np.full((8, 8), shade, np.uint8)) for shade in (0, 90, 255)]
    frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
    with pytest.raises(TaskError, match=f"{name}: expected one picture in a file, got 3"):
        read(tmp_path / name)


def test_smaller_copies_in_a_file_are_not_read(tmp_path):
    large, small = Image.fromarray(RAMP.astype(np.uint8)), Image.new("L", (4, 4))
    large.save(tmp_path / "pyramid.tif", save_all=True, append_images=[small])
    np.testing.assert_array_equal(read(tmp_path / "pyramid.tif")[0], np.asarray(large))


@pytest.mark.parametrize("kept", [0, 10, 60])
def test_empty_and_truncated_files_are_refused(tmp_path, kept):
    path = saved(tmp_path / "cut.png", np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(TaskError, match=r"cut\.png: expected a picture, got"):
        read(path)


def test_a_folder_says_what_was_converted_and_what_was_not_read(tmp_path):
    for label, level in (("dim", 4000), ("lit", 30000)):
        (tmp_path / label).mkdir()
        for number in range(5):
            saved(tmp_path / label / f"{number}.png", np.full((8, 8), level + number, np.uint16))
    (tmp_path / "dim" / "scan.dcm").write_bytes(b"DICM")
    (tmp_path / "dim" / ".hidden").write_bytes(b"")
    pool = load_pool("image-folder", {"size": 8, "channels": 1}, tmp_path, False)
    assert pool.preprocessing.reading == (
        "10 of 10 pictures: 16 bits, scaled to 8; not read, as no picture: 1 file (.dcm)"
    )
    gathered = pool.gather(np.arange(10), np.zeros(10, int))
    assert sorted({round(float(value) * 65535) for value in gathered.ravel()}) == sorted(
        {level + number for level in (4000, 30000) for number in range(5)}
    )  # none of the 16 bits is lost
