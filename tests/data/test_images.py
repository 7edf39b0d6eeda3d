"""Images as files hold them, and boxes on images that EXIF turns."""

import io
import json
import struct
import time
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from melm.data import Source
from melm.data.images import ImageError, content_key, decode_image, image_info, is_image, read_bytes, read_image
from melm.measure.truth import read_truth
from writers import Picture, Thing, coco_json, save_image, voc_xml, write_text

STORED = (32, 16)  # width and height on disk
TURNED = {  # EXIF orientation -> the stored array as a viewer shows it
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: np.rot90(a, 1),
}
LOSSLESS = {".png": {}, ".webp": {"lossless": True}, ".bmp": {}, ".tif": {}, ".tiff": {"compression": "tiff_lzw"}}


def noise(shape, top=256, dtype=np.uint8):
    return np.random.default_rng(0).integers(0, top, shape, dtype)


def save(path, pixels, **options):
    Image.fromarray(pixels).save(path, **options)
    return path


def exif(orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def grey(values):
    """An (H, W) array as read_image shows it."""
    return np.repeat(np.asarray(values, np.uint8)[..., None], 3, axis=2)


# Kinds of files


@pytest.mark.parametrize("ending", LOSSLESS)
def test_lossless_kinds(tmp_path, ending):
    pixels = noise((16, 32, 3))
    path = save(tmp_path / f"a{ending}", pixels, **LOSSLESS[ending])
    read = read_image(path)
    assert read.dtype == np.uint8 and read.flags.c_contiguous
    np.testing.assert_array_equal(read, pixels)
    info = image_info(path)
    assert (info.width, info.height, info.orientation, info.pages) == (32, 16, 1, 1)


@pytest.mark.parametrize("ending", [".jpg", ".JPEG", ".webp"])
def test_lossy_kinds(tmp_path, ending):
    pixels = np.full((16, 32, 3), (200, 100, 50), np.uint8)
    path = save(tmp_path / f"a{ending}", pixels, quality=95)
    np.testing.assert_allclose(read_image(path), pixels, atol=4)


def test_kind_is_told_by_content_not_by_name(tmp_path):
    pixels = noise((16, 32, 3))
    path = save(tmp_path / "a.jpg", pixels, format="PNG")
    np.testing.assert_array_equal(read_image(path), pixels)


def test_gif_is_not_read(tmp_path):
    path = save(tmp_path / "a.jpg", noise((16, 32)), format="GIF")
    with pytest.raises(ImageError, match="not an image"):
        read_image(path)


def test_picture_with_a_second_one_inside(tmp_path):
    """MPO, as phones write it under the name .jpg."""
    first, second = (Image.new("RGB", STORED, colour) for colour in ("red", "blue"))
    first.save(tmp_path / "a.jpg", format="MPO", save_all=True, append_images=[second])
    assert read_image(tmp_path / "a.jpg")[0, 0, 0] > 250
    assert image_info(tmp_path / "a.jpg").pages == 1


def test_first_page_of_a_tiff(tmp_path):
    pages = [Image.new("RGB", STORED, colour) for colour in ("red", "blue")]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    assert read_image(tmp_path / "a.tif")[0, 0].tolist() == [255, 0, 0]
    assert image_info(tmp_path / "a.tif").pages == 2


def test_names_of_images(tmp_path):
    yes = ("a.jpg", "a.JPG", "a.jpeg", "a.png", "a.webp", "a.bmp", "a.tif", "a.TIFF", "猫 1.jpg")
    assert all(is_image(tmp_path / name) for name in yes)
    assert not any(is_image(tmp_path / name) for name in ("a.gif", "a.txt", "a", ".a.jpg", "._a.jpg", ".jpg"))


# Modes


def test_grey(tmp_path):
    pixels = noise((16, 32))
    np.testing.assert_array_equal(read_image(save(tmp_path / "a.png", pixels)), grey(pixels))


@pytest.mark.parametrize("channels", [2, 4], ids=["LA", "RGBA"])
def test_transparent_pixels_are_white(tmp_path, channels):
    pixels = noise((16, 32, channels))
    pixels[:8, :, -1] = 0
    pixels[8:12, :, -1] = 255
    read = read_image(save(tmp_path / "a.png", pixels)).astype(int)
    alpha = pixels[..., -1:] / 255
    np.testing.assert_allclose(read, np.broadcast_to(pixels[..., :-1] * alpha + 255 * (1 - alpha), read.shape), atol=1)
    assert (read[:8] == 255).all()
    np.testing.assert_array_equal(read[8:12], np.broadcast_to(pixels[8:12, :, :-1], (4, 32, 3)))


def palette_image():
    image = Image.fromarray(noise((16, 32), top=3)).convert("P")
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    return image


@pytest.mark.parametrize("clear", [None, 1, b"\xff\x00\x80"], ids=["opaque", "one entry", "alpha per entry"])
def test_palette(tmp_path, clear):
    image = palette_image()
    image.save(tmp_path / "a.png", **({} if clear is None else {"transparency": clear}))
    colours = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255]])
    if clear is not None:
        colours[1] = 255
    if isinstance(clear, bytes):
        colours[2] = (127, 127, 255)  # half blue over white
    np.testing.assert_allclose(read_image(tmp_path / "a.png"), colours[np.asarray(image)], atol=1)


def test_grey_with_a_transparent_value(tmp_path):
    pixels = noise((16, 32))
    Image.fromarray(pixels).save(tmp_path / "a.png", transparency=7)
    np.testing.assert_array_equal(read_image(tmp_path / "a.png"), grey(np.where(pixels == 7, 255, pixels)))


def test_cmyk(tmp_path):
    Image.new("CMYK", STORED, (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=95)
    Image.new("CMYK", STORED, (0, 255, 255, 0)).save(tmp_path / "a.tif")
    for name in ("a.jpg", "a.tif"):
        np.testing.assert_allclose(read_image(tmp_path / name)[8, 16], (255, 0, 0), atol=6)


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_16_bit_grey_is_scaled(tmp_path, name):
    pixels = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    read = read_image(save(tmp_path / name, pixels))
    assert read[0, 0].tolist() == [0] * 3 and read[-1, -1].tolist() == [255] * 3
    np.testing.assert_array_equal(read, grey(np.round(pixels / 257)))


def test_16_bit_grey_big_endian(tmp_path):
    values = np.array([[0, 257, 65535]], ">u2")
    image = Image.frombytes("I;16B", (3, 1), values.tobytes())
    image.save(tmp_path / "a.tif")
    assert read_image(tmp_path / "a.tif")[0, :, 0].tolist() == [0, 1, 255]


def test_1_bit(tmp_path):
    pixels = noise((16, 32), top=2).astype(bool)
    for name in ("a.png", "a.tif", "a.bmp"):
        np.testing.assert_array_equal(read_image(save(tmp_path / name, pixels)), grey(pixels * 255))


def test_float_between_0_and_1(tmp_path):
    pixels = np.linspace(0, 1, 512, dtype=np.float32).reshape(16, 32)
    np.testing.assert_array_equal(read_image(save(tmp_path / "a.tif", pixels)), grey(np.round(pixels * 255)))


@pytest.mark.parametrize("value", [-0.1, 1.1, 255, np.nan, np.inf])
def test_float_outside_0_to_1(tmp_path, value):
    pixels = np.zeros((16, 32), np.float32)
    pixels[3, 4] = value
    path = save(tmp_path / "a.tif", pixels)
    with pytest.raises(ImageError, match="floating-point pixels outside 0 to 1") as caught:
        read_image(path)
    assert str(caught.value).startswith(f"{path}: ")


# EXIF orientation


@pytest.mark.parametrize("orientation", TURNED)
@pytest.mark.parametrize("ending", [".png", ".webp", ".tif", ".tiff"])
def test_orientation_is_applied(tmp_path, ending, orientation):
    pixels = noise((16, 32, 3))
    path = save(tmp_path / f"a{ending}", pixels, exif=exif(orientation), **LOSSLESS[ending])
    shown = TURNED[orientation](pixels)
    read, info = decode_image(read_bytes(path), path)
    np.testing.assert_array_equal(read, shown)
    for info_ in (info, image_info(path)):
        assert (info_.height, info_.width, info_.orientation) == (*shown.shape[:2], orientation)
        assert info_.stored_size == STORED


@pytest.mark.parametrize("orientation", TURNED)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_orientation_of_jpeg(tmp_path, mode, orientation):
    image = Image.new("RGB", STORED, "white")
    image.paste((0, 0, 0), (0, 0, 16, 8))  # whole blocks: JPEG keeps the edges
    image.convert(mode).save(tmp_path / "a.jpg", quality=95, exif=exif(orientation))
    read = read_image(tmp_path / "a.jpg")
    np.testing.assert_allclose(read, TURNED[orientation](np.asarray(image)), atol=10)
    info = image_info(tmp_path / "a.jpg")
    assert (info.height, info.width) == read.shape[:2] and info.stored_size == STORED


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_orientation_without_meaning_is_none(tmp_path, orientation):
    pixels = noise((16, 32, 3))
    path = save(tmp_path / "a.png", pixels, exif=exif(orientation))
    np.testing.assert_array_equal(read_image(path), pixels)
    assert image_info(path).orientation == 1


def test_16_bit_image_is_turned(tmp_path):
    pixels = (noise((16, 32)) * np.uint16(257)).astype(np.uint16)
    path = save(tmp_path / "a.png", pixels, exif=exif(6))
    np.testing.assert_array_equal(read_image(path), grey(np.rot90(pixels, -1) // 257))


BOX = (3, 2, 11, 6)  # on the stored pixels


def turned_picture(root, orientation, ending):
    """A picture whose object is the only white in it, and that object's box as a viewer sees it."""
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[BOX[1] : BOX[3], BOX[0] : BOX[2]] = 255
    path = save(root / f"a{ending}", pixels, exif=exif(orientation))
    shown = read_image(path)
    rows, columns = np.nonzero(shown[..., 0])
    seen = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    return shown.shape[1::-1], tuple(int(v) for v in seen)


@pytest.mark.parametrize("ending", [".png", ".tif"])
@pytest.mark.parametrize("drawn_on", ["stored", "shown"])
@pytest.mark.parametrize("format", ["xml", "coco"])
@pytest.mark.parametrize("orientation", [1, 5, 6, 7, 8])
def test_boxes_turn_with_the_picture(tmp_path, format, drawn_on, orientation, ending):
    """The size in the annotation says whether its boxes were drawn on the stored pixels or on the picture as shown."""
    shown_size, seen = turned_picture(tmp_path, orientation, ending)
    size, box = (STORED, BOX) if drawn_on == "stored" else (shown_size, seen)
    if format == "xml":
        write_text(tmp_path / "a.xml", voc_xml(size, [Thing("cat", box)]))
    else:
        write_text(tmp_path / "a.json", json.dumps(coco_json([Picture(f"a{ending}", (Thing("cat", box),), size)])))
    (image,) = read_truth(Source(tmp_path)).images.values()
    assert tuple(image.boxes[0]) == seen


@pytest.mark.parametrize("orientation", [2, 3, 4])
def test_boxes_of_a_flipped_picture_are_taken_as_seen(tmp_path, orientation):
    """The size does not tell; most tools show the picture upright."""
    _, seen = turned_picture(tmp_path, orientation, ".png")
    write_text(tmp_path / "a.xml", voc_xml(STORED, [Thing("cat", seen)]))
    assert tuple(read_truth(Source(tmp_path)).images["a"].boxes[0]) == seen


def test_shares_are_of_the_picture_as_seen(tmp_path):
    shown_size, _ = turned_picture(tmp_path, 6, ".png")
    write_text(tmp_path / "a.txt", "0 0.5 0.5 1 0.5\n")
    write_text(tmp_path / "data.yaml", "train: .\nnames: [cat]\n")
    assert shown_size == (16, 32)
    assert read_truth(Source(tmp_path)).images["a"].boxes.tolist() == [[0, 8, 16, 24]]


# Files that are no images


@pytest.mark.parametrize("ending", [".jpg", ".png", ".webp", ".bmp", ".tif", ".tiff"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.98])
def test_truncated(tmp_path, ending, share):
    path = save(tmp_path / f"a{ending}", noise((60, 80, 3)), **LOSSLESS.get(ending, {}))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ImageError) as caught:
        read_image(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("read", [read_image, image_info])
@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "the file is empty"),
        (b"this is a text\n", "not an image"),
        ("folder", ""),
        (None, "there is no such file"),
    ],
)
def test_no_image_at_all(tmp_path, read, content, words):
    path = tmp_path / "a.jpg"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ImageError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ") and words in str(caught.value)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@pytest.mark.parametrize("read", [read_image, image_info])
def test_decompression_bomb(tmp_path, read):
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))
    rows = chunk(b"IDAT", zlib.compress(bytes(100_000)))
    path = tmp_path / "a.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + rows + chunk(b"IEND", b""))
    start = time.perf_counter()
    with pytest.raises(ImageError, match="more than the 178,956,970 pixels allowed") as caught:
        read(path)
    assert time.perf_counter() - start < 1
    assert str(caught.value).startswith(f"{path}: ")


def test_tiff_that_begins_beyond_any_file(tmp_path):
    content = bytearray(SAMPLES[".tif"])
    at = content.index(b"\x11\x01\x04\x00")  # where the pixels begin, as a 4-byte number ...
    content[at + 2] = 16  # ... now one of 8 bytes, which lies elsewhere
    place = int.from_bytes(content[at + 8 : at + 12], "little")
    content[place : place + 8] = b"\xff" * 8
    path = tmp_path / "a.tif"
    path.write_bytes(content)
    with pytest.raises(ImageError) as caught:
        read_image(path)
    assert str(caught.value).startswith(f"{path}: ")


def sample(ending):
    data = io.BytesIO()
    kind = {".jpg": "JPEG", ".tif": "TIFF"}.get(ending, ending[1:].upper())
    Image.fromarray(noise((12, 16, 3))).save(data, kind, exif=exif(6))
    return data.getvalue()


SAMPLES = {ending: sample(ending) for ending in (".jpg", ".png", ".webp", ".bmp", ".tif")}


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data(), st.sampled_from(sorted(SAMPLES)))
def test_damaged_bytes_raise_only_image_errors(tmp_path_factory, data, ending):
    content = bytearray(SAMPLES[ending])
    last = min(len(content), data.draw(st.sampled_from([200, 10**6]))) - 1  # a wrong byte does most in the header
    for place, byte in data.draw(
        st.lists(st.tuples(st.integers(0, last), st.integers(0, 255)), min_size=1, max_size=4)
    ):
        content[place] = byte
    content = bytes(content[: data.draw(st.integers(0, len(content)))]) if data.draw(st.booleans()) else bytes(content)
    path = tmp_path_factory.getbasetemp() / f"damaged{ending}"
    path.write_bytes(content)
    for read in (read_image, image_info):
        try:
            read(path)
        except ImageError as error:
            assert str(error).startswith(f"{path}: ")


@settings(max_examples=100, deadline=None)
@given(
    st.binary(max_size=200), st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"BM", b"II*\0", b"MM\0*"])
)
def test_arbitrary_bytes_raise_only_image_errors(tmp_path_factory, content, start):
    path = tmp_path_factory.getbasetemp() / "arbitrary.jpg"
    path.write_bytes(start + content)
    for read in (read_image, image_info):
        try:
            read(path)
        except ImageError as error:
            assert str(error).startswith(f"{path}: ")


# The name of an image by its content


def test_content_key(tmp_path):
    one = save_image(tmp_path / "one.jpg", seed=0)
    same = save_image(tmp_path / "sub/other name.jpg", seed=0)
    other = save_image(tmp_path / "other.jpg", seed=1)
    keys = [content_key(read_bytes(path)) for path in (one, same, other)]
    assert keys[0] == keys[1] != keys[2] and len(keys[0]) == 32
    assert content_key(one.read_bytes() + b"\0") != keys[0]
