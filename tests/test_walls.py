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
EVERYWHERE = {"errors", "boxes", "config", "progress", "workers", "files", "memory"}  # import none of the folders
MAY_READ_BOXES = {
    "data",
    "measure",
    "show",
    "export",
    "cli",
    "commands",
    "demo",
    "recipe",
    "tags_to_boxes",
    "__main__",
    "__init__",
}  # what reads data, or comes after learning
# All that the others may take from `data`. None of it leads to a box.
OPEN = {"melm.data": set(melm.data.__all__), "melm.data.records": None, "melm.data.images": None}


def imports(path):
    return imports_of(ast.parse(path.read_text()))


def imports_of(tree):
    """(module, name) of every import of melm; name is None for `import melm.x`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
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
    if here in ("cli", "commands", "demo", "recipe", "tags_to_boxes", "__main__", "__init__"):
        return
    assert here in ORDER or here in EVERYWHERE, f"{path}: a new room; give it its place in the order"
    for module, name in imports(path):
        there = room(module, name)
        if there is None or there in EVERYWHERE or there == here:
            continue
        assert here in ORDER and ORDER.index(there) < ORDER.index(here), f"{path} imports {module}"


def ways_to_boxes(source):
    """What in a module's text could lead to boxes: imports from `data` beyond what is open, and reaching through modules."""
    tree = ast.parse(source)
    for module, name in imports_of(tree):
        if module == "melm.data" and name is None:
            yield "import melm.data"  # everything hangs off the package itself
        elif module.startswith("melm.data") and (module not in OPEN or (OPEN[module] and name not in OPEN[module])):
            yield f"from {module} import {name}"
        elif module == "melm" and name in ("data", "measure"):
            yield f"from melm import {name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in {
            "formats",
            "placing",
            "check",
            "truth",
            "__globals__",
        }:
            yield f".{node.attr}"
        if isinstance(node, ast.Attribute) and node.attr == "modules" and getattr(node.value, "id", "") == "sys":
            yield "sys.modules"
        if isinstance(node, ast.Name) and node.id in {"__import__", "eval", "exec", "globals", "vars"}:
            yield node.id


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_learns_cannot_reach_boxes(path):
    if path.relative_to(ROOT).parts[0].removesuffix(".py") not in MAY_READ_BOXES:
        assert list(ways_to_boxes(path.read_text())) == []


@pytest.mark.parametrize(
    "cheat",
    [
        "from melm.data.check import placed_boxes, read",
        "from melm.data.formats import read",
        "from melm.data import formats",
        "from melm.data import read",
        "import melm.data.formats as f",
        "import melm.data\nmelm.data.formats.read",
        "from melm import data\ndata.formats",
        "from melm.data.formats.listing import Entry",
        "import sys\nsys.modules['melm.data.formats']",
        "__import__('melm.data.formats')",
        "from melm.data import read_tags\nread_tags.__globals__['read']",
    ],
)
def test_cheats_are_caught(cheat):
    assert list(ways_to_boxes(cheat))


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
