"""The order of the folders, and the wall between learning and boxes. Both are read off the source, import by import."""

import ast
import gc
from pathlib import Path

import pytest

import melm
import melm.data
from melm.data import Source, TaggedImage, TaggedImages, read_tags

ROOT = Path(melm.__file__).parent
ORDER = ["data", "proposals", "model", "learn", "detect", "measure", "show", "export"]  # as the data walks
EVERYWHERE = {"errors", "boxes", "config", "progress", "workers", "files"}  # import none of the folders
BOX_READERS = {"melm.data.formats", "melm.data.placing"}  # modules that can parse boxes when asked
MAY_READ_BOXES = {"data", "measure"}  # ... and the folders that may ask
SOURCE_ALONE = {"melm.data.formats.listing.Source", "melm.data.formats.FORMATS"}  # names that lead to no box


def imports(path):
    """(module, name) of every import of melm in a file; name is None for `import melm.x`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module and node.module.split(".")[0] == "melm":
                yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.split(".")[0] == "melm")


def room(module, name=None):
    """The folder or top-level module that an import leads to."""
    parts = module.split(".")
    if len(parts) > 1:
        return parts[1]
    return name if name and ((ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file()) else None


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_folder_imports_only_folders_before_it(path):
    here = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if here in ("cli", "__main__", "__init__"):
        return
    assert here in ORDER or here in EVERYWHERE, f"{path}: a new room; give it its place in the order"
    for module, name in imports(path):
        there = room(module, name)
        if there is None or there in EVERYWHERE or there == here:
            continue
        assert here in ORDER and ORDER.index(there) < ORDER.index(here), f"{path} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_only_data_and_measure_can_read_boxes(path):
    here = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if here in MAY_READ_BOXES:
        return
    for module, name in imports(path):
        whole = f"{module}.{name}" if name else module
        assert whole in SOURCE_ALONE or not any(f"{whole}.".startswith(f"{m}.") for m in BOX_READERS), (
            f"{path}: {whole}"
        )
        assert module != "melm.data" or name in melm.data.__all__, f"{path} takes {name} out of melm.data"
    for node in ast.walk(ast.parse(path.read_text())):  # nor by reaching through a module, nor by asking for boxes
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"formats", "placing", "placed_boxes", "read_truth"}, f"{path}:{node.lineno}"
        if isinstance(node, ast.keyword) and node.arg == "boxes":
            assert not (isinstance(node.value, ast.Constant) and node.value.value is True), (
                f"{path}:{node.value.lineno}"
            )


def test_no_import_is_hidden_from_these_tests():
    for path in FILES:
        text = path.read_text()
        assert "__import__" not in text, path
        if "import_module" in text:  # one place, which names numpy's modules
            assert path.name == "ready_made.py", path


def test_tags_lead_to_no_box(tmp_path):
    """Everything reachable from what learning is given: no coordinate of any box is in it."""
    from writers import Picture, Thing, write_coco

    marker = (123457, 234571, 345679, 456791)  # numbers that occur nowhere else
    write_coco(tmp_path, [Picture("a.png", [Thing("cat", marker)])])
    tagged = read_tags(Source(tmp_path))
    assert tagged[0].tags == ("cat",)
    seen, waiting = set(), [tagged]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, type):
            continue
        seen.add(id(thing))
        assert thing not in marker if isinstance(thing, (int, float)) else True
        waiting.extend(gc.get_referents(thing))


def test_the_records_have_no_room_for_boxes():
    image = TaggedImage("a", Path("a.jpg"), ("cat",))
    with pytest.raises((AttributeError, TypeError)):
        image.boxes = [(0, 0, 1, 1)]
    with pytest.raises((AttributeError, TypeError)):
        TaggedImages(Path(), ("cat",), (image,)).boxes = []
